"""Token masking for masked language modeling (T4).

    15% of the tokens are chosen, the same number in every row.        Devlin 2019, 3.1
    Of these, 80% become the mask, 10% a random token, 10% stay unchanged.

If all of them were masked, a model could learn to predict at masks alone, of which real text has none. This way any
token may be wrong, so that every token's state must say what belongs there.

Masks are drawn anew each time a text is read (dynamic masking, Liu 2019), and depend on the generator alone.
"""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy.typing import NDArray

from heedful.data.token_store import Ids
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import PAD
from heedful.text.tokenizer import Tokenizer

MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become the mask, and a random token."""


class Masking:
    """Masks tokens of rows of ids; with `whole_words`, all tokens of a word or none."""

    def __init__(self, tokenizer: Tokenizer, *, share: float = 0.15, whole_words: bool = False) -> None:
        self.share, self.whole_words = share, whole_words
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        pieces = tokenizer.pieces(range(len(tokenizer)))
        is_text = np.ones(len(pieces), bool)
        is_text[list(tokenizer.special_ids)] = False
        self.replacements = np.flatnonzero(is_text)
        """Ids that a token may be replaced by: all but special tokens."""
        self.maskable = is_text & np.array([bool(piece.strip()) for piece in pieces])
        """Text tokens other than blanks, which are not worth predicting."""
        continues_word = [piece.startswith("##") for piece in pieces]  # WordPiece marks tokens inside a word
        if not any(continues_word):  # other vocabularies have a space before each word
            continues_word = [is_word_character(piece, 0) for piece in pieces]
        self.starts_word = ~is_text | ~np.array(continues_word)
        self.ends_word = ~is_text | np.array([not is_word_character(piece, -1) for piece in pieces])

    def masked_per_row(self, width: int) -> int:
        """Number of tokens chosen in a row of `width` tokens."""
        return max(1, round(self.share * width))

    def mask_tokens(
        self, rows: Ids, generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Ids]:
        """Mask rows; return (positions, labels, masked rows), with the same number of positions in each row.

        A label is the original token, or PAD where a row has fewer tokens to mask.
        """
        width = rows.shape[1]
        count = min(self.masked_per_row(width), width - 1)
        priority = generator.random(rows.shape)  # the lowest are chosen
        if self.whole_words:
            priority = np.take_along_axis(priority, self._word_starts(rows), axis=1)
        priority[~self.maskable[rows]] = np.inf
        order = np.argsort(priority, axis=1)
        positions, priority = order[:, :count], np.take_along_axis(priority, order, axis=1)
        row_counts = np.clip(np.rint(self.share * (rows != PAD).sum(1, keepdims=True)).astype(int), 1, count)
        # Strictly below the first that is not chosen: the tokens of a word share a priority, so all or none are.
        chosen = priority[:, :count] < np.take_along_axis(priority, row_counts, axis=1)
        original = np.take_along_axis(rows, positions, axis=1)
        choice = generator.random(positions.shape)
        random = self.replacements[generator.integers(len(self.replacements), size=positions.shape)]
        replaced = np.where(choice < MASKED, self.template.mask, np.where(choice < MASKED + RANDOM, random, original))
        masked = rows.copy()
        np.put_along_axis(masked, positions, np.where(chosen, replaced, original), axis=1)
        return positions, np.where(chosen, original, PAD), masked

    def _word_starts(self, rows: Ids) -> NDArray[np.intp]:
        """The position in its row of the first token of each token's word."""
        starts = self.starts_word[rows]
        starts[:, 0] = True
        starts[:, 1:] |= self.ends_word[rows[:, :-1]]
        return np.maximum.accumulate(np.where(starts, np.arange(rows.shape[1]), 0), axis=1)


def is_word_character(piece: str, index: int) -> bool:
    """Whether the character of a token at this index is part of a word.

    It is a letter, a digit, a mark (as Thai and Indic vowels are), or a byte of a rare character.
    """
    character = piece[index] if piece else " "
    return character.isalnum() or piece.startswith("\\x") or unicodedata.category(character)[0] == "M"
