"""Occlusion: what target words owe to source words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import heedful
from heedful.generation.terminology.occlusion import (
    MAX_OCCLUSIONS,
    TextWords,
    occlusion_scores,
    score_targets,
    normalise_scores,
)
from heedful.text.special_tokens import END, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.text.word_boundaries import find_words

FAMILIES = ["laptop-translator", "recurrent-translator", "recurrent-bottleneck"]
TEXTS = ["the red dog runs", "der rote Hund rennt", "ein Hund", "a dog"]


def _translator(name: str) -> tuple[torch.nn.Module, Tokenizer]:
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig(kind="byte_bpe", vocabulary=300))
    torch.manual_seed(3)
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 1}
    return heedful.build(name, vocabulary=len(tokenizer), **size).eval(), tokenizer


def _by_hand(model: torch.nn.Module, source: list[int], target: list[int]) -> list[float]:
    with torch.no_grad():
        state = model.start(torch.tensor([[*source, END]]), torch.tensor([len(source) + 1]))
        found = []
        for before, token in zip([START, *target], target, strict=False):
            found.append(float(model.extend(torch.tensor([[before]]), state)[0, -1].log_softmax(-1)[token]))
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_forced_scores_are_those_of_writing_token_by_token(name: str) -> None:
    model, tokenizer = _translator(name)
    ids = tokenizer.encode(TEXTS)
    pairs = [(ids[0], ids[1]), (ids[2], []), ([], ids[3]), (ids[3], ids[2])]
    for (source, target), found in zip(pairs, score_targets(model, pairs, tokens=20), strict=True):
        np.testing.assert_allclose(found, _by_hand(model, source, target), atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_debt_is_what_a_word_loses_when_another_is_left_out(name: str) -> None:
    model, tokenizer = _translator(name)
    source, target = "the red dog", "der Hund"
    (found,) = occlusion_scores(
        model, (tokenizer,), [(TextWords(source, find_words(source)), TextWords(target, find_words(target)))]
    )
    shorter = [span.token for span in tokenizer.spans(source) if span.end <= 3 or span.start >= 7]
    spans = tokenizer.spans(target)
    full, without = (_by_hand(model, ids, [s.token for s in spans]) for ids in (tokenizer.encode([source])[0], shorter))
    lost = sum(a - b for a, b, span in zip(full, without, spans, strict=True) if span.end > 4)
    assert found.shape == (3, 2)
    assert found[1, 1] == pytest.approx(max(0.0, lost), abs=1e-5)


def test_a_very_long_source_is_not_read_again_for_every_word() -> None:
    model, tokenizer = _translator("recurrent-translator")
    source, target = "dog " * (2 * MAX_OCCLUSIONS - 1), "der Hund"
    (found,) = occlusion_scores(
        model, (tokenizer,), [(TextWords(source, find_words(source)), TextWords(target, find_words(target)))]
    )
    assert found.shape == (2 * MAX_OCCLUSIONS - 1, 2)
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[1], found[2])


def test_rivals_settle_who_came_from_whom() -> None:
    owed = np.array([[0.5, 0.1], [3.0, 8.0]])  # "a man" and "ein Mann": both words owe most to "man"
    assert normalise_scores(owed).argmax(0).tolist() == [0, 1]
    assert (normalise_scores(owed).sum(0) <= 1).all()
    assert np.array_equal(normalise_scores(np.zeros((2, 0))), np.zeros((2, 0)))
