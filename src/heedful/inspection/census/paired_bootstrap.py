"""Bootstrap over texts: confidence intervals of scores, and of score differences on the same texts (Koehn 2004)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.floating[Any]]
SAMPLES = 1000


class Interval(NamedTuple):
    """A measured value and its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference is clear: zero lies outside the interval."""
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def bootstrap_interval(values: Values, *, seed: int = 0) -> tuple[float, float]:
    """The 95% interval of a mean over texts; one sample at a time, so that memory does not depend on their number."""
    generator, count = np.random.default_rng(seed), len(values)
    means = [values[generator.integers(count, size=count)].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return low, high


class PairedBootstrap:
    """Resamples texts, the same samples for every score: seeded, so that results can be repeated."""

    def __init__(self, weights: Values, *, seed: int = 0) -> None:
        """`weights`: the weight of each text, such as its number of tokens."""
        count = len(weights)
        draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=SAMPLES)
        self.weights = weights
        self.draws = draws.astype(np.float64)
        self.totals = np.maximum(self.draws @ weights, 1e-12)

    def mean(self, sums: Values) -> Interval:
        """The weighted mean of a score over all texts, from the sum of each text, with its interval."""
        samples = self.draws @ sums / self.totals
        low, high = np.quantile(samples, [0.025, 0.975])
        return Interval(float(sums.sum() / max(self.weights.sum(), 1e-12)), float(low), float(high))
