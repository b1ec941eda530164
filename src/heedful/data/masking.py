"""Words hidden from a model that is to find them again (T4).

    15% of the tokens are chosen, in every row as many.        Devlin 2019, 3.1
    Of these, 80% become the mask, 10% some other token, 10% stay what they are.

Were all of them masked, a model could learn to think at masks alone, of which real text has none. As it is, any token
may be wrong, and may have to be found again: every token's state must say what belongs there.

What is chosen is drawn anew each time a text is read (Liu 2019), and depends on the generator alone.
"""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy.typing import NDArray

from heedful.data.token_store import Ids
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import PAD
from heedful.text.tokenizer import Tokenizer

MASKED, SWAPPED = 0.8, 0.1
"""Of the chosen tokens: the share that is masked, and the share that becomes another token."""


class Masking:
    """Hides tokens of rows of ids; `whole_words`: all pieces of a word or none."""

    def __init__(self, tokenizer: Tokenizer, *, share: float = 0.15, whole_words: bool = False) -> None:
        self.share, self.whole_words = share, whole_words
        self.mask = SpecialTokenTemplate.from_tokenizer(tokenizer).mask
        pieces = tokenizer.pieces(range(len(tokenizer)))
        text = np.ones(len(pieces), bool)
        text[list(tokenizer.special_ids)] = False
        self.ordinary = np.flatnonzero(text)
        """Ids of text: what a token may be swapped for."""
        self.hideable = text & np.array([bool(piece.strip()) for piece in pieces])
        """Blanks are text, but nothing to find."""
        going_on = [piece.startswith("##") for piece in pieces]  # so others mark what does not begin a word
        if not any(going_on):
            going_on = [letters_at(piece, 0) for piece in pieces]  # while here words have a space before them
        self.opens = ~text | ~np.array(going_on)
        self.shuts = ~text | np.array([not letters_at(piece, -1) for piece in pieces])

    def masked_per_row(self, width: int) -> int:
        """How many tokens are chosen in a row of so many."""
        return max(1, round(self.share * width))

    def mask_tokens(self, rows: Ids, draw: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64], Ids]:
        """(places, labels, rows with tokens hidden): in each row the same number of places, and what stood there.

        A label of PAD says that a row had not so many to hide. Rows of one shape give arrays of one shape.
        """
        width = rows.shape[1]
        number = min(self.masked_per_row(width), width - 1)
        luck = draw.random(rows.shape)
        if self.whole_words:
            luck = np.take_along_axis(luck, self._word_starts(rows), axis=1)
        luck[~self.hideable[rows]] = np.inf
        order = np.argsort(luck, axis=1)
        places, luck = order[:, :number], np.take_along_axis(luck, order, axis=1)
        own = np.clip(np.rint(self.share * (rows != PAD).sum(1, keepdims=True)).astype(int), 1, number)
        # Below the first that is not: of a word, all is chosen or nothing.
        chosen = luck[:, :number] < np.take_along_axis(luck, own, axis=1)
        stood = np.take_along_axis(rows, places, axis=1)
        fate = draw.random(places.shape)
        other = self.ordinary[draw.integers(len(self.ordinary), size=places.shape)]
        put = np.where(fate < MASKED, self.mask, np.where(fate < MASKED + SWAPPED, other, stood))
        hidden = rows.copy()
        np.put_along_axis(hidden, places, np.where(chosen, put, stood), axis=1)
        return places, np.where(chosen, stood, PAD), hidden

    def _word_starts(self, rows: Ids) -> NDArray[np.intp]:
        """For each token, where in its row its word begins."""
        begins = self.opens[rows]
        begins[:, 0] = True
        begins[:, 1:] |= self.shuts[rows[:, :-1]]
        return np.maximum.accumulate(np.where(begins, np.arange(rows.shape[1]), 0), axis=1)


def letters_at(piece: str, end: int) -> bool:
    """Whether a word could go on at this end of a token: there is a letter or digit, a mark (which Thai and Indic
    vowels are), or a byte of some rare sign."""
    sign = piece[end] if piece else " "
    return sign.isalnum() or piece.startswith("\\x") or unicodedata.category(sign)[0] == "M"
