"""Detect misaligned pairs by their lengths, which are uncorrelated for unrelated lines.

The lengths of sentences and their translations correlate by 0.8 or so (Gale and Church, 1993). If a line is missing on
one side, each later source is paired with the target of its neighbor, and the correlation drops to about 0.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 10
"""Characters that are added to both sides before the logarithm, so that the lengths of short sentences may vary."""

BLOCK = 100
"""Pairs in a block, the unit in which correlations are computed."""

MIN_BLOCKS = 2
"""With fewer blocks no alignment is judged."""

MIN_DEVIATION = 0.08
"""Minimum deviation of log lengths. Blocks that vary less, as in a corpus sorted by length, are not judged."""

ALIGNED, MISALIGNED, UNRELATED = 0.5, 0.3, 0.2
"""Minimum correlation before the line where files diverge, and maximum after it; maximum of unrelated files."""


class LengthAlignment:
    """Gathers lengths of pairs in blocks, and finds from where on they are unrelated."""

    def __init__(self) -> None:
        self._pending = np.zeros((2, 0))
        self._moments = array("d")  # of each block: two means, two variances and the covariance

    def add(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Add the lengths in characters of further pairs."""
        lengths = np.concatenate([self._pending, np.log(np.stack([sources, targets]) + SMOOTHING)], axis=1)
        complete = lengths.shape[1] // BLOCK * BLOCK
        self._pending = lengths[:, complete:]
        blocks = lengths[:, :complete].reshape(2, -1, BLOCK)
        means = blocks.mean(axis=2)
        centered = blocks - means[:, :, None]
        covariances = (centered[0] * centered[1]).mean(axis=1)
        moments = np.stack([*means, *(centered**2).mean(axis=2), covariances], axis=1)
        self._moments.frombytes(moments.tobytes())

    def first_misaligned(self) -> int | None:
        """About the first row from which on, to the end, the pairs look unrelated; None if they do not."""
        moments = np.array(self._moments).reshape(-1, 5)
        means, within = moments[:, :2], moments[:, 2:]
        if len(moments) < MIN_BLOCKS:
            return None
        judged = np.flatnonzero((within[:, :2] >= MIN_DEVIATION**2).all(axis=1))
        if len(judged) >= MIN_BLOCKS:
            divergence = _divergence(within[judged])
            after = judged[divergence:]
            if divergence and 2 * len(after) >= len(moments) - after[0]:
                return int(after[0]) * BLOCK
            if 2 * len(judged) >= len(moments) and _correlation(within[judged]) >= UNRELATED:
                return None
        between = means - means.mean(axis=0)
        total = within + np.stack([*(between**2).T, between.prod(axis=1)], axis=1)
        varies = (total[:, :2].mean(axis=0) >= MIN_DEVIATION**2).all()
        return 0 if varies and _correlation(total) < UNRELATED else None


def _divergence(within: NDArray[np.float64]) -> int:
    """The block from which on the correlation stays low, if it was high before it; else 0."""
    correlations = within[:, 2] / np.sqrt(within[:, 0] * within[:, 1])
    before = np.arange(1, len(within))
    excess = np.cumsum(correlations - correlations.mean())[:-1]
    block = int((excess / np.sqrt(before * before[::-1])).argmax()) + 1  # where a step fits best by least squares
    diverges = (
        len(within) - block >= MIN_BLOCKS
        and _correlation(within[:block]) >= ALIGNED
        and _correlation(within[block:]) < MISALIGNED
    )
    return block if diverges else 0


def _correlation(moments: NDArray[np.float64]) -> float:
    """Correlation over all pairs of these blocks, from the variances and the covariance of each block."""
    source, target, covariance = moments.mean(axis=0)
    return float(covariance / np.sqrt(source * target))
