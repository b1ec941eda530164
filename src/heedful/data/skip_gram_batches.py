"""Words and their neighbours, a stretch of text at a time: what word vectors learn from (E2).

As everywhere, a batch is a pure function of (seed, epoch, index): which frequent words are passed over, and which words
are drawn against the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.batching import Indices
from heedful.data.token_store import Sequences
from heedful.errors import DataError
from heedful.shapes import Int
from heedful.text.special_tokens import END, SPECIAL_TOKENS

ROW = 32
"""Words that share the words drawn against them."""
NEGATIVES = 64
"""And how many those are."""
FLATTENED = 0.75
"""Words are drawn by their frequency to this power: the rare ones more often than they occur."""
NO_DOCUMENT = -1
"""The document of places that hold no word."""


@dataclass(frozen=True)
class SkipGramBatch:
    """Rows of running text with what stands around them."""

    words: Int[Tensor, "rows words"]
    context: Int[Tensor, "rows around"]
    """The row again, with a window's width of text before it and behind it."""
    document_ids: Int[Tensor, "rows around"]
    """Which document each of these words belongs to; NOWHERE: there is no word here."""
    negatives: Int[Tensor, "rows drawn"]
    words_read: int
    """Words of text that this was made from."""


class SkipGramBatches:
    """Stretches of text, in a new order each epoch.

    Frequent words say little of their neighbours: of a word with a share f of the text, √(t/f) + t/f are kept, the
    rest passed over as if they were not there (t is `subsample`; word2vec's form of Mikolov 2013, eq. 5). Words that
    are not in the vocabulary are passed over, too.
    """

    fixed_shape = False
    unit = "words"

    def __init__(
        self,
        text: Sequences,
        counts: npt.NDArray[np.int64],
        *,
        words: int,
        window: int,
        subsample: float,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self.text, self.size, self.window = text, words, window
        self.seed, self.shuffle = seed, shuffle
        self.kept = keep_probabilities(counts, subsample)
        self.table = negative_sampling_table(counts)

    @property
    def labels_per_epoch(self) -> int:
        """Words read in an epoch."""
        return len(self.text.ids)

    def plan(self, epoch: int) -> list[Indices]:
        """Where each stretch begins."""
        starts = np.arange(0, len(self.text.ids), self.size)
        if self.shuffle:
            np.random.default_rng([self.seed, epoch]).shuffle(starts)
        return list(starts[:, None])

    def batch(self, epoch: int, indices: Indices) -> SkipGramBatch:
        start, edge = int(indices[0]), self.window
        draw = np.random.default_rng([self.seed, epoch, start])
        ids = np.asarray(self.text.ids[start : start + self.size])
        documents = np.cumsum(ids == END, dtype=np.int32)
        kept = draw.random(len(ids), dtype=np.float32) < self.kept[ids]
        words, documents = ids[kept], documents[kept]
        rows = max(1, -(-len(words) // ROW))
        around = np.arange(0, rows * ROW, ROW)[:, None] + np.arange(ROW + 2 * edge)
        drawn = self.table[draw.integers(0, len(self.table), (rows, NEGATIVES))].astype(np.int64)
        padded = (rows * ROW + 2 * edge, edge, edge + len(words))
        return SkipGramBatch(
            words=torch.from_numpy(_placed(words, 0, *padded)[edge : edge + rows * ROW].reshape(rows, ROW)),
            context=torch.from_numpy(_placed(words, 0, *padded)[around]),
            document_ids=torch.from_numpy(_placed(documents, NO_DOCUMENT, *padded)[around]),
            negatives=torch.from_numpy(drawn),
            words_read=len(ids),
        )


def _placed(values: npt.NDArray[np.integer], empty: int, size: int, start: int, end: int) -> npt.NDArray[np.int64]:
    placed = np.full(size, empty, np.int64)
    placed[start:end] = values
    return placed


def count_words(text: Sequences, vocabulary: int) -> npt.NDArray[np.int64]:
    """How often each word occurs; special tokens are no words."""
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(text.ids), 1 << 24):
        counts += np.bincount(text.ids[start : start + (1 << 24)], minlength=vocabulary)
    counts[: len(SPECIAL_TOKENS)] = 0
    if np.count_nonzero(counts) < 2:
        raise DataError("fewer than two different words are left to learn from: give more text, or lower min_count")
    return counts


def keep_probabilities(counts: npt.NDArray[np.int64], subsample: float) -> npt.NDArray[np.float32]:
    """The share of each word's occurrences that is kept; of what is no word, none."""
    share = counts / counts.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.sqrt(subsample / share) + subsample / share if subsample else np.ones(len(counts))
    return np.where(counts > 0, np.minimum(1.0, kept), 0.0).astype(np.float32)


def negative_sampling_table(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Every word as often as it is to be drawn: looking up a random place draws a word."""
    share = counts**FLATTENED
    size = max(1 << 20, 32 * len(counts))
    ends = np.rint(np.cumsum(share / share.sum()) * size).astype(np.int64)
    return np.repeat(np.arange(len(counts), dtype=np.int32), np.diff(ends, prepend=0))
