"""The unigram vocabulary (Kudo 2018): the sums over cuts against listing the cuts, and what is learnt."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.text.unigram_trainer import Lattice, _digamma, learn_pieces

examples = settings(deadline=None, max_examples=60, derandomize=True)
TEXT = "the cat sat on the mat then the rat ran at the cat and then sat on that mat"
strings = st.text("abc", min_size=1, max_size=7)


def cuts(text: str, pieces: set[str]) -> list[tuple[str, ...]]:
    """Every way to cut the text into the pieces."""
    if not text:
        return [()]
    heads = [text[:end] for end in range(1, len(text) + 1) if text[:end] in pieces]
    return [(head, *tail) for head in heads for tail in cuts(text[len(head) :], pieces)]


@st.composite
def models(draw: st.DrawFn) -> dict[str, float]:
    pieces = sorted({"a", "b", "c", *draw(st.sets(strings, max_size=8))})
    return {piece: math.log(draw(st.floats(0.01, 1.0))) for piece in pieces}


@examples
@given(model=models(), words=st.dictionaries(strings, st.integers(1, 5), min_size=1, max_size=4))
def test_expected_uses_are_the_mean_over_all_cuts(model: dict[str, float], words: dict[str, int]) -> None:
    index = {piece: place for place, piece in enumerate(model)}
    scores, counts = np.array(list(model.values())), np.array(list(words.values()), dtype=np.float64)
    wanted = np.zeros(len(model))
    for word, count in words.items():
        ways = cuts(word, set(model))
        chances = np.exp([sum(model[piece] for piece in way) for way in ways])
        for way, chance in zip(ways, chances / chances.sum(), strict=True):
            for piece in way:
                wanted[index[piece]] += count * chance
    np.testing.assert_allclose(Lattice(list(words), index).expected_uses(scores, counts), wanted, atol=1e-9)


@examples
@given(model=models(), texts=st.lists(strings, min_size=1, max_size=4), whole=st.booleans())
def test_best_is_the_best_cut(model: dict[str, float], texts: list[str], whole: bool) -> None:
    index = {piece: place for place, piece in enumerate(model)}
    best = Lattice(texts, index, whole=whole).best(np.array(list(model.values())))
    for text, found in zip(texts, best, strict=True):
        ways = [way for way in cuts(text, set(model)) if whole or way != (text,)]
        assert found == pytest.approx(max((sum(model[piece] for piece in way) for way in ways), default=-math.inf))


@examples
@given(model=models(), texts=st.lists(strings, min_size=1, max_size=4))
def test_dropping_a_piece_drops_every_cut_with_it(model: dict[str, float], texts: list[str]) -> None:
    index = {piece: place for place, piece in enumerate(model)}
    scores = np.array(list(model.values()))
    gone = np.array([len(piece) > 1 for piece in model])
    lattice = Lattice(texts, index)
    lattice.drop(gone)
    assert lattice.best(scores) == pytest.approx([sum(model[character] for character in text) for text in texts])


def test_digamma_matches_known_values() -> None:
    euler = 0.5772156649015329
    found = _digamma(np.array([0.5, 1.0, 2.0, 10.0]))
    assert found == pytest.approx([-euler - 2 * math.log(2), -euler, 1 - euler, 2.2517525890667211], abs=1e-6)


def test_a_frequent_word_found_in_no_other_becomes_a_piece() -> None:
    """The library's trainer, which looks at distinct words only, misses it."""
    learnt = learn_pieces({"▁that": 50, "▁thin": 1, "▁walked": 1, "▁hat": 1}, 20)
    assert learnt[0][0] == "▁that"


def test_parts_that_rare_words_share_become_pieces() -> None:
    stems = ["walk", "talk", "jump", "land", "paint", "help", "play", "cook"]
    words = {f"▁{stem}{ending}": 1 for stem in stems for ending in ("ed", "ing", "s")}
    learnt = {piece for piece, _ in learn_pieces(words, 40)}
    assert {"ed", "ing"} <= learnt
    assert len({f"▁{stem}" for stem in stems} & learnt) >= 4


@examples
@given(words=st.dictionaries(strings, st.integers(1, 20), min_size=1, max_size=30), size=st.integers(3, 40))
def test_no_more_than_asked_and_every_character(words: dict[str, int], size: int) -> None:
    learnt = learn_pieces(words, size)
    pieces = [piece for piece, _ in learnt]
    assert len(set(pieces)) == len(pieces) <= size
    assert set("".join(words)) <= set(pieces)
    assert all(any(piece in word for word in words) for piece in pieces)
    assert sorted((score for _, score in learnt), reverse=True) == [score for _, score in learnt]
    assert sum(math.exp(score) for _, score in learnt) <= 1 + 1e-4


def test_more_pieces_explain_the_words_better() -> None:
    words = Counter(TEXT.split())
    fits = []
    for size in (12, 16, 20):
        model = dict(learn_pieces(words, size))
        chance = [sum(math.exp(sum(model[p] for p in way)) for way in cuts(word, set(model))) for word in words]
        fits.append(sum(count * math.log(value) for count, value in zip(words.values(), chance, strict=True)))
    assert fits == sorted(fits)
    assert fits[0] < fits[-1]


def test_the_order_of_words_does_not_matter() -> None:
    words = {"banana": 4, "bandana": 2, "ananas": 3, "ban": 5, "anna": 2}
    assert learn_pieces(words, 9) == learn_pieces(dict(reversed(words.items())), 9)
