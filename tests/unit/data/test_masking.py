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
    return np.array([[START, *ids[start : start + body], SEPARATOR] for start in range(0, len(ids) - body, body)])


def test_every_row_masks_the_same_number_of_text_tokens(tokenizer: Tokenizer) -> None:
    rows, masking = rows_of(tokenizer, 64), Masking(tokenizer)
    positions, labels, masked = masking.mask_tokens(rows, np.random.default_rng(0))
    assert positions.shape == labels.shape == (len(rows), round(0.15 * 64))
    assert (labels != PAD).all()
    assert np.array_equal(np.take_along_axis(rows, positions, 1), labels)
    assert all(len(set(row)) == len(row) for row in positions.tolist()), "no position twice"
    blank = [token for token, piece in enumerate(tokenizer.pieces(range(len(tokenizer)))) if not piece.strip()]
    assert not np.isin(labels, [*range(len(SPECIAL_TOKENS)), *blank]).any(), "nothing special, no line break"
    untouched = np.ones_like(rows, bool)
    np.put_along_axis(untouched, positions, False, 1)
    assert (masked == rows)[untouched].all()


def test_80_percent_are_masked_10_percent_random_10_percent_unchanged(tokenizer: Tokenizer) -> None:
    rows = np.tile(rows_of(tokenizer, 64), (60, 1))
    positions, labels, masked = Masking(tokenizer).mask_tokens(rows, np.random.default_rng(1))
    replaced = np.take_along_axis(masked, positions, 1)
    assert (replaced == MASK).mean() == pytest.approx(0.8, abs=0.02)
    assert (replaced == labels).mean() == pytest.approx(0.1, abs=0.02)
    swapped = replaced[(replaced != MASK) & (replaced != labels)]
    assert len(swapped) / replaced.size == pytest.approx(0.1, abs=0.02)
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
        positions, labels, _ = Masking(tokenizer).mask_tokens(rows, np.random.default_rng(seed))
        assert (labels[1] != PAD).sum() == round(0.15 * 20)
        assert positions[1][labels[1] != PAD].max() < 20


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece"])
def test_whole_words_are_masked_completely(kind: str) -> None:
    tokenizer = Tokenizer.train(TEXT, TokenizerConfig(kind=kind, vocabulary=280 if kind == "byte_bpe" else 40))
    rows = rows_of(tokenizer, 64)
    positions, labels, _ = Masking(tokenizer, share=0.3, whole_words=True).mask_tokens(rows, np.random.default_rng(0))
    several = 0
    for row, row_positions, label in zip(rows.tolist(), positions.tolist(), labels.tolist(), strict=True):
        masked_positions = {position for position, token in zip(row_positions, label, strict=True) if token != PAD}
        pieces = tokenizer.pieces(row)
        words: list[list[int]] = []
        for position, piece in enumerate(pieces):
            continues = position and piece[0].isalpha() and pieces[position - 1][-1].isalpha()
            words[-1].append(position) if continues else words.append([position])
        for word in words:
            assert len(masked_positions & set(word)) in (0, len(word)), [pieces[position] for position in word]
            several += len(word) > 1 and word[0] in masked_positions
        assert masked_positions
    assert several > 10
