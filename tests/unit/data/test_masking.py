"""Token masking: how many tokens, which, and what replaces them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from heedful.data.masking import Masking
from heedful.text.special_tokens import MASK, PAD, SEPARATOR, SPECIAL_TOKENS, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = [
    "The unhappy reader was reading an unreadable letter, unhappily.\n",
    "Two dogs are playing in the snow while a man is watching them play.\n",
] * 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXT, TokenizerConfig(vocabulary=330))


def rows_of(tokenizer: Tokenizer, width: int) -> NDArray[np.int64]:
    ids = [token for text in tokenizer.encode(TEXT) for token in (*text, SEPARATOR)]
    body = width - 2
    return np.array([[START, *ids[at : at + body], SEPARATOR] for at in range(0, len(ids) - body, body)])


def test_every_row_masks_the_same_number_of_text_tokens(tokenizer: Tokenizer) -> None:
    rows, masking = rows_of(tokenizer, 64), Masking(tokenizer)
    places, labels, hidden = masking.mask_tokens(rows, np.random.default_rng(0))
    assert places.shape == labels.shape == (len(rows), round(0.15 * 64))
    assert (labels != PAD).all()
    assert np.array_equal(np.take_along_axis(rows, places, 1), labels)
    assert all(len(set(row)) == len(row) for row in places.tolist()), "no place twice"
    blank = [token for token, piece in enumerate(tokenizer.pieces(range(len(tokenizer)))) if not piece.strip()]
    assert not np.isin(labels, [*range(len(SPECIAL_TOKENS)), *blank]).any(), "nothing special, no line break"
    untouched = np.ones_like(rows, bool)
    np.put_along_axis(untouched, places, False, 1)
    assert (hidden == rows)[untouched].all()


def test_80_percent_are_masked_10_percent_random_10_percent_unchanged(tokenizer: Tokenizer) -> None:
    rows = np.tile(rows_of(tokenizer, 64), (60, 1))
    places, labels, hidden = Masking(tokenizer).mask_tokens(rows, np.random.default_rng(1))
    put = np.take_along_axis(hidden, places, 1)
    assert (put == MASK).mean() == pytest.approx(0.8, abs=0.02)
    assert (put == labels).mean() == pytest.approx(0.1, abs=0.02)
    swapped = put[(put != MASK) & (put != labels)]
    assert len(swapped) / put.size == pytest.approx(0.1, abs=0.02)
    assert swapped.min() >= len(SPECIAL_TOKENS)
    assert len(np.unique(swapped)) > 200, "any word of the vocabulary"


def test_masks_depend_on_the_generator_alone(tokenizer: Tokenizer) -> None:
    rows, masking = rows_of(tokenizer, 64), Masking(tokenizer)
    first, same, other = (masking.mask_tokens(rows, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_padded_row_masks_its_share_and_no_padding(tokenizer: Tokenizer) -> None:
    rows = rows_of(tokenizer, 64)[:2].copy()
    rows[1, 20:] = PAD
    for seed in range(20):
        places, labels, _ = Masking(tokenizer).mask_tokens(rows, np.random.default_rng(seed))
        assert (labels[1] != PAD).sum() == round(0.15 * 20)
        assert places[1][labels[1] != PAD].max() < 20


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece"])
def test_whole_words_are_masked_completely(kind: str) -> None:
    tokenizer = Tokenizer.train(TEXT, TokenizerConfig(kind=kind, vocabulary=280 if kind == "byte_bpe" else 40))
    rows = rows_of(tokenizer, 64)
    places, labels, _ = Masking(tokenizer, share=0.3, whole_words=True).mask_tokens(rows, np.random.default_rng(0))
    several = 0
    for row, at, label in zip(rows.tolist(), places.tolist(), labels.tolist(), strict=True):
        gone = {place for place, token in zip(at, label, strict=True) if token != PAD}
        pieces = tokenizer.pieces(row)
        words: list[list[int]] = []
        for place, piece in enumerate(pieces):
            goes_on = place and piece[0].isalpha() and pieces[place - 1][-1].isalpha()
            words[-1].append(place) if goes_on else words.append([place])
        for word in words:
            assert len(gone & set(word)) in (0, len(word)), [pieces[place] for place in word]
            several += len(word) > 1 and word[0] in gone
        assert gone
    assert several > 10
