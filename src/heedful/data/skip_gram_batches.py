"""Batches for skip-gram word vectors: words, their context, and negative samples (E2).

A batch is a pure function of (seed, epoch, index), including the subsampling of frequent words and the negatives.
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
"""Words that share their negative samples."""
NEGATIVES = 64
"""Negative samples of a row."""
SAMPLING_POWER = 0.75
"""Negatives are drawn by frequency to this power: rare words more often than they occur."""
NO_DOCUMENT = -1
"""Document id of positions without a word."""


@dataclass(frozen=True)
class SkipGramBatch:
    """Rows of running text with the words around them and negative samples."""

    words: Int[Tensor, "rows words"]
    context: Int[Tensor, "rows context"]
    """The row, with a window's width of text before and after it."""
    document_ids: Int[Tensor, "rows context"]
    """The document each word of the context belongs to; NO_DOCUMENT where there is no word."""
    negatives: Int[Tensor, "rows negatives"]
    words_read: int
    """Words of text this batch was made from."""


class SkipGramBatches:
    """Chunks of text, in a new order each epoch.

    Frequent words say little about their neighbors: of a word with a share f of the text, √(t/f) + t/f are kept and
    the others skipped (t is `subsample`; word2vec's form of Mikolov 2013, eq. 5). Unknown words are skipped, too.
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
        self.keep = keep_probabilities(counts, subsample)
        self.sampling_table = negative_sampling_table(counts)

    @property
    def labels_per_epoch(self) -> int:
        """Words read in an epoch."""
        return len(self.text.ids)

    def plan(self, epoch: int) -> list[Indices]:
        """The start of each chunk."""
        starts = np.arange(0, len(self.text.ids), self.size)
        if self.shuffle:
            np.random.default_rng([self.seed, epoch]).shuffle(starts)
        return list(starts[:, None])

    def batch(self, epoch: int, indices: Indices) -> SkipGramBatch:
        start, edge = int(indices[0]), self.window
        generator = np.random.default_rng([self.seed, epoch, start])
        ids = np.asarray(self.text.ids[start : start + self.size])
        documents = np.cumsum(ids == END, dtype=np.int32)
        kept = generator.random(len(ids), dtype=np.float32) < self.keep[ids]
        words, documents = ids[kept], documents[kept]
        rows = max(1, -(-len(words) // ROW))
        around = np.arange(0, rows * ROW, ROW)[:, None] + np.arange(ROW + 2 * edge)
        negatives = self.sampling_table[generator.integers(0, len(self.sampling_table), (rows, NEGATIVES))]
        after = rows * ROW - len(words) + edge
        padded = np.pad(words.astype(np.int64), (edge, after))
        document_ids = np.pad(documents.astype(np.int64), (edge, after), constant_values=NO_DOCUMENT)
        return SkipGramBatch(
            words=torch.from_numpy(padded[edge : edge + rows * ROW].reshape(rows, ROW)),
            context=torch.from_numpy(padded[around]),
            document_ids=torch.from_numpy(document_ids[around]),
            negatives=torch.from_numpy(negatives.astype(np.int64)),
            words_read=len(ids),
        )


def count_words(text: Sequences, vocabulary: int) -> npt.NDArray[np.int64]:
    """Count each word of the vocabulary; special tokens count 0."""
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(text.ids), 1 << 24):
        counts += np.bincount(text.ids[start : start + (1 << 24)], minlength=vocabulary)
    counts[: len(SPECIAL_TOKENS)] = 0
    if np.count_nonzero(counts) < 2:
        raise DataError(
            "fewer than two different words are left to learn from: give more text, put spaces between its words if "
            "its script has none, or lower min_count"
        )
    return counts


def keep_probabilities(counts: npt.NDArray[np.int64], subsample: float) -> npt.NDArray[np.float32]:
    """The probability that an occurrence of each word is kept; 0 for special tokens."""
    share = counts / counts.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        keep = np.sqrt(subsample / share) + subsample / share if subsample else np.ones(len(counts))
    return np.where(counts > 0, np.minimum(1.0, keep), 0.0).astype(np.float32)


def negative_sampling_table(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Each word repeated in proportion to its probability: a random index draws a word."""
    share = counts**SAMPLING_POWER
    size = max(1 << 20, 32 * len(counts))
    ends = np.rint(np.cumsum(share / share.sum()) * size).astype(np.int64)
    return np.repeat(np.arange(len(counts), dtype=np.int32), np.diff(ends, prepend=0))
