"""Batches for next-sentence prediction: did the second text follow the first? (Devlin 2019, 3.1 · T4)

    START first SEPARATOR second SEPARATOR        segments 0 0 0 0 1 1 1

A window of running text is split at a sentence boundary. In half of the rows the second part is replaced by another
window's, from another document. Both kinds begin at a split of some window, and rows are always full, so that only the
texts' content tells them apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heedful.data.batching import Indices
from heedful.data.masked_lm_batches import MaskedBatch, MaskedBatches, add_special_tokens, mask_rows
from heedful.data.masking import Masking
from heedful.data.token_store import Ids, Sequences
from heedful.errors import DataError
from heedful.quantities import count
from heedful.text.tokenizer import Tokenizer

Positions = NDArray[np.int64]
MAX_TRIES = 20
"""Windows drawn until one of another document is found."""


class NextSentenceBatches(MaskedBatches):
    """`MaskedBatches` with two texts per row. `text` has one sequence per sentence; SEPARATOR ends a document."""

    special_tokens = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.text_tokens = min(self.text_tokens, len(self.text.ids) // 4)
        self.documents = positions_after(self.text.ids, self.masking.template.end)
        """Position of each document's first token."""
        self.boundaries = np.setdiff1d(self.text.starts[:-1], self.documents)
        """Positions where a sentence follows another of its document."""
        if len(self.documents) < 2 or self.text_tokens < 4:
            raise DataError(
                f"{count(len(self.documents), 'document')} of {len(self.text.ids):,} tokens: next-sentence prediction "
                "needs at least two documents to train on and two to validate with; a blank line ends a document"
            )

    def plan(self, epoch: int) -> list[Indices]:
        """Full windows only: a truncated second text would reveal the label."""
        full = (starts[starts + self.text_tokens <= len(self.text.ids)] for starts in super().plan(epoch))
        return [starts for starts in full if len(starts)]

    def batch(self, epoch: int, indices: Indices) -> MaskedBatch:
        generator = np.random.default_rng([self.seed, epoch, int(indices[0])])
        starts, size = self.shorten_windows(indices, generator)
        splits = self._split(starts, size, generator)
        seconds, is_random = self._second_texts(splits, size, generator)
        ids, ends = self.text.ids, seconds + starts + size - splits
        spans = zip(starts, splits, seconds, ends, strict=True)
        texts = [(ids[start:split], ids[second:end]) for start, split, second, end in spans]
        rows = add_special_tokens(texts, self.masking.template)
        segments = (np.arange(rows.shape[1]) >= (splits - starts + 2)[:, None]).astype(np.int64)
        lengths = np.full(len(rows), rows.shape[1])
        return mask_rows(rows, lengths, self.masking, generator, segments, is_random.astype(np.int64))

    def _split(self, starts: Positions, size: int, generator: np.random.Generator) -> Positions:
        """A random sentence boundary in the middle half of each window; the middle if there is none."""
        quarter = size // 4
        first = np.searchsorted(self.boundaries, starts + quarter)
        count = np.searchsorted(self.boundaries, starts + size - quarter, side="right") - first
        choice = (generator.random(len(starts)) * count).astype(np.int64)
        middle = starts + size // 2
        middle += 2 * (self._document(middle - 1) != self._document(middle + 1))  # not where a document ends
        if not len(self.boundaries):
            return middle
        return np.where(count > 0, self.boundaries[np.minimum(first + choice, len(self.boundaries) - 1)], middle)

    def _second_texts(
        self, splits: Positions, size: int, generator: np.random.Generator
    ) -> tuple[Positions, NDArray[np.bool_]]:
        """Where each row's second text begins, and whether it is from another document."""
        wanted = generator.random(len(splits)) < 0.5
        seconds, documents = splits.copy(), self._document(splits)
        last = len(self.text.ids) - 2 * size
        for _ in range(MAX_TRIES):
            same = wanted & (self._document(seconds) == documents)
            if not same.any():
                break
            others = self._split(generator.integers(last + 1, size=len(splits)), size, generator)
            seconds = np.where(same, others, seconds)
        is_random = wanted & (self._document(seconds) != documents)
        return np.where(is_random, seconds, splits), is_random

    def _document(self, positions: Positions) -> Positions:
        return np.searchsorted(self.documents, positions, side="right")


def positions_after(ids: Ids, token: int) -> Positions:
    """0, and every position after this token; a chunk of the ids is in memory at a time."""
    chunk = 1 << 24
    after = [np.flatnonzero(ids[start : start + chunk] == token) + start + 1 for start in range(0, len(ids), chunk)]
    starts = np.concatenate([np.zeros(1, np.int64), *after])
    return starts[starts < len(ids)]


def masked_batches(
    text: Sequences,
    tokenizer: Tokenizer,
    *,
    next_sentence: bool,
    context: int,
    tokens: int,
    seed: int,
    shuffle: bool = True,
    share: float = 0.15,
    whole_words: bool = False,
) -> MaskedBatches:
    """Batches of about `tokens` tokens for masked language modeling, with next-sentence prediction or without."""
    kind = NextSentenceBatches if next_sentence else MaskedBatches
    masking = Masking(tokenizer, share=share, whole_words=whole_words)
    return kind(text, masking, context=context, rows=max(1, tokens // context), seed=seed, shuffle=shuffle)
