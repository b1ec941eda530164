"""Two texts in a row: did the second follow the first? BERT's other task, beside hidden words (Devlin 2019, 3.1 · T4).

    START one SEPARATOR other SEPARATOR        segments 0 0 0 0 1 1 1

A window of running text is cut in two, at a border between sentences. In half of the rows the second part is another
window's instead, from another document. Both kinds begin where some window was cut, and rows are always full: nothing
but what the texts say tells them apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.batching import Indices
from heedful.data.masked_lm_batches import MaskedBatch, MaskedBatches, add_special_tokens, mask_rows
from heedful.data.masking import Masking
from heedful.data.token_store import Ids, Sequences
from heedful.errors import DataError
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer

Places = NDArray[np.int64]
TRIES = 20
"""Windows drawn until one of another document is met."""


class NextSentenceBatches(MaskedBatches):
    """As `MaskedBatches`, with two texts a row. `text` has a sequence for each sentence; SEPARATOR ends a document."""

    around = 3

    def __init__(self, text: Sequences, masking: Masking, frame: SpecialTokenTemplate, **settings: Any) -> None:
        super().__init__(text, masking, frame, **settings)
        self.body = min(self.body, len(text.ids) // 4)
        self.documents = positions_after(text.ids, frame.end)
        """Where each begins."""
        self.borders = np.setdiff1d(text.starts[:-1], self.documents)
        """Where a sentence follows another of its document."""
        if len(self.documents) < 2 or self.body < 4:
            raise DataError(
                f"{len(self.documents)} document(s) of {len(text.ids):,} tokens: to tell which sentence follows which "
                "takes two at least, to train on and to validate with; a blank line ends a document"
            )

    def plan(self, epoch: int) -> list[Indices]:
        """Whole windows only: a part that is cut off could not be told from one that ends there."""
        whole = (starts[starts + self.body <= len(self.text.ids)] for starts in super().plan(epoch))
        return [starts for starts in whole if len(starts)]

    def batch(self, epoch: int, indices: Indices) -> MaskedBatch:
        draw = np.random.default_rng([self.seed, epoch, int(indices[0])])
        starts, body = self.shorten_windows(indices, draw) if self.shuffle else (indices, self.body)
        cuts = self._cut(starts, body, draw)
        seconds, elsewhere = self._seconds(cuts, body, draw)
        ids, ends = self.text.ids, seconds + starts + body - cuts
        places = zip(starts, cuts, seconds, ends, strict=True)
        rows = add_special_tokens([(ids[start:cut], ids[second:end]) for start, cut, second, end in places], self.frame)
        segments = (np.arange(rows.shape[1]) >= (cuts - starts + 2)[:, None]).astype(np.int64)
        full = np.full(len(rows), rows.shape[1])
        return mask_rows(rows, full, self.masking, draw, segments, elsewhere.astype(np.int64))

    def _cut(self, starts: Places, body: int, draw: np.random.Generator) -> Places:
        """A border near the middle of each window, drawn among those there are; or the middle, where there is none."""
        quarter = body // 4
        first = np.searchsorted(self.borders, starts + quarter)
        found = np.searchsorted(self.borders, starts + body - quarter, side="right") - first
        luck = (draw.random(len(starts)) * found).astype(np.int64)
        middle = starts + body // 2
        middle += 2 * (self._document(middle - 1) != self._document(middle + 1))  # not where one text ends
        if not len(self.borders):
            return middle
        return np.where(found > 0, self.borders[np.minimum(first + luck, len(self.borders) - 1)], middle)

    def _seconds(self, cuts: Places, body: int, draw: np.random.Generator) -> tuple[Places, NDArray[np.bool_]]:
        """Where each row's second text begins, and whether that is elsewhere."""
        wanted = draw.random(len(cuts)) < 0.5
        seconds, own = cuts.copy(), self._document(cuts)
        last = len(self.text.ids) - 2 * body
        for _ in range(TRIES):
            same = wanted & (self._document(seconds) == own)
            if not same.any():
                break
            others = self._cut(draw.integers(last + 1, size=len(cuts)), body, draw)
            seconds = np.where(same, others, seconds)
        elsewhere = wanted & (self._document(seconds) != own)
        return np.where(elsewhere, seconds, cuts), elsewhere

    def _document(self, places: Places) -> Places:
        return np.searchsorted(self.documents, places, side="right")


def positions_after(ids: Ids, end: int, at_once: int = 1 << 24) -> Places:
    """Where something begins that follows this token, and 0; a part of the ids in memory at a time."""
    found = [np.flatnonzero(ids[start : start + at_once] == end) + start + 1 for start in range(0, len(ids), at_once)]
    starts = np.concatenate([np.zeros(1, np.int64), *found])
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
    """Batches of `tokens` tokens in windows of `context`, of either kind."""
    kind = NextSentenceBatches if next_sentence else MaskedBatches
    masking = Masking(tokenizer, share=share, whole_words=whole_words)
    rows = max(1, tokens // context)
    return kind(text, masking, SpecialTokenTemplate.from_tokenizer(tokenizer), context=context, rows=rows, seed=seed, shuffle=shuffle)
