"""Unigram training (Kudo 2018): lattice sums against listing every segmentation, and the vocabulary it learns."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.text.unigram_trainer import Lattice, _digamma, train_unigram

examples = settings(deadline=None, max_examples=60, derandomize=True)
TEXT = "the cat sat on the mat then the rat ran at the cat and then sat on that mat"
strings = st.text("abc", min_size=1, max_size=7)


def segmentations(text: str, pieces: set[str]) -> list[tuple[str, ...]]:
    if not text:
        return [()]
    heads = [text[:end] for end in range(1, len(text) + 1) if text[:end] in pieces]
    return [(head, *tail) for head in heads for tail in segmentations(text[len(head) :], pieces)]


@st.composite
def models(draw: st.DrawFn) -> dict[str, float]:
    pieces = sorted({"a", "b", "c", *draw(st.sets(strings, max_size=8))})
    return {piece: math.log(draw(st.floats(0.01, 1.0))) for piece in pieces}


@examples
@given(model=models(), words=st.dictionaries(strings, st.integers(1, 5), min_size=1, max_size=4))
def test_expected_counts_are_the_mean_over_all_segmentations(model: dict[str, float], words: dict[str, int]) -> None:
    index = {piece: row for row, piece in enumerate(model)}
    scores, counts = np.array(list(model.values())), np.array(list(words.values()), dtype=np.float64)
    expected = np.zeros(len(model))
    for word, count in words.items():
        candidates = segmentations(word, set(model))
        probabilities = np.exp([sum(model[piece] for piece in candidate) for candidate in candidates])
        for candidate, probability in zip(candidates, probabilities / probabilities.sum(), strict=True):
            for piece in candidate:
                expected[index[piece]] += count * probability
    np.testing.assert_allclose(Lattice(list(words), index).expected_counts(scores, counts), expected, atol=1e-9)


@examples
@given(model=models(), texts=st.lists(strings, min_size=1, max_size=4), allow_whole=st.booleans())
def test_best_score_is_that_of_the_best_segmentation(
    model: dict[str, float], texts: list[str], allow_whole: bool
) -> None:
    index = {piece: row for row, piece in enumerate(model)}
    best = Lattice(texts, index, allow_whole=allow_whole).best_scores(np.array(list(model.values())))
    for text, score in zip(texts, best, strict=True):
        candidates = [pieces for pieces in segmentations(text, set(model)) if allow_whole or pieces != (text,)]
        scores = (sum(model[piece] for piece in candidate) for candidate in candidates)
        assert score == pytest.approx(max(scores, default=-math.inf))


@examples
@given(model=models(), texts=st.lists(strings, min_size=1, max_size=4))
def test_removing_pieces_removes_every_segmentation_with_them(model: dict[str, float], texts: list[str]) -> None:
    index = {piece: row for row, piece in enumerate(model)}
    lattice = Lattice(texts, index)
    lattice.remove(np.array([len(piece) > 1 for piece in model]))
    best = lattice.best_scores(np.array(list(model.values())))
    assert best == pytest.approx([sum(model[character] for character in text) for text in texts])


def test_digamma_matches_known_values() -> None:
    euler = 0.5772156649015329
    values = _digamma(np.array([0.5, 1.0, 2.0, 10.0]))
    assert values == pytest.approx([-euler - 2 * math.log(2), -euler, 1 - euler, 2.2517525890667211], abs=1e-6)


def test_frequent_word_that_is_part_of_no_other_becomes_a_piece() -> None:
    """The trainer of `tokenizers`, which looks at distinct words only, misses it."""
    vocabulary = train_unigram({"▁that": 50, "▁thin": 1, "▁walked": 1, "▁hat": 1}, 20)
    assert vocabulary[0][0] == "▁that"


def test_stems_and_endings_shared_by_rare_words_become_pieces() -> None:
    stems = ["walk", "talk", "jump", "land", "paint", "help", "play", "cook"]
    words = {f"▁{stem}{ending}": 1 for stem in stems for ending in ("ed", "ing", "s")}
    pieces = {piece for piece, _ in train_unigram(words, 40)}
    assert {"ed", "ing"} <= pieces
    assert len({f"▁{stem}" for stem in stems} & pieces) >= 4


@examples
@given(words=st.dictionaries(strings, st.integers(1, 20), min_size=1, max_size=30), size=st.integers(3, 40))
def test_vocabulary_holds_every_character_and_at_most_size_pieces(words: dict[str, int], size: int) -> None:
    vocabulary = train_unigram(words, size)
    pieces = [piece for piece, _ in vocabulary]
    assert len(set(pieces)) == len(pieces) <= size
    assert set("".join(words)) <= set(pieces)
    assert all(any(piece in word for word in words) for piece in pieces)
    assert sorted((score for _, score in vocabulary), reverse=True) == [score for _, score in vocabulary]
    assert sum(math.exp(score) for _, score in vocabulary) <= 1 + 1e-4


def test_larger_vocabulary_raises_the_likelihood() -> None:
    words = Counter(TEXT.split())
    likelihoods = []
    for size in (12, 16, 20):
        model = dict(train_unigram(words, size))
        probabilities = [
            sum(math.exp(sum(model[piece] for piece in pieces)) for pieces in segmentations(word, set(model)))
            for word in words
        ]
        likelihoods.append(sum(n * math.log(p) for n, p in zip(words.values(), probabilities, strict=True)))
    assert likelihoods == sorted(likelihoods)
    assert likelihoods[0] < likelihoods[-1]


def test_word_order_does_not_change_the_vocabulary() -> None:
    words = {"banana": 4, "bandana": 2, "ananas": 3, "ban": 5, "anna": 2}
    assert train_unigram(words, 9) == train_unigram(dict(reversed(words.items())), 9)
