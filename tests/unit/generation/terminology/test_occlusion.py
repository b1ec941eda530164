"""Occlusion scores: the drop of a target word's log-probability when a source word is removed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import heedful
from heedful.generation.terminology.occlusion import (
    MAX_OCCLUSIONS,
    TextWords,
    normalize_scores,
    occlusion_scores,
    score_targets,
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


def _step_by_step(model: torch.nn.Module, source: list[int], target: list[int]) -> list[float]:
    with torch.no_grad():
        state = model.start(torch.tensor([[*source, END]]), torch.tensor([len(source) + 1]))
        scores = []
        for previous, token in zip([START, *target], target, strict=False):
            logits = model.extend(torch.tensor([[previous]]), state)[0, -1]
            scores.append(float(logits.log_softmax(-1)[token]))
    return scores


@pytest.mark.parametrize("name", FAMILIES)
def test_teacher_forced_scores_equal_step_by_step_decoding(name: str) -> None:
    model, tokenizer = _translator(name)
    ids = tokenizer.encode(TEXTS)
    pairs = [(ids[0], ids[1]), (ids[2], []), ([], ids[3]), (ids[3], ids[2])]
    for (source, target), scores in zip(pairs, score_targets(model, pairs, batch_tokens=20), strict=True):
        np.testing.assert_allclose(scores, _step_by_step(model, source, target), atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_score_is_the_drop_when_a_word_is_removed(name: str) -> None:
    model, tokenizer = _translator(name)
    source, target = "the red dog", "der Hund"
    (scores,) = occlusion_scores(
        model, (tokenizer,), [(TextWords(source, find_words(source)), TextWords(target, find_words(target)))]
    )
    shorter = [span.token for span in tokenizer.spans(source) if span.end <= 3 or span.start >= 7]
    spans = tokenizer.spans(target)
    full, without = (
        _step_by_step(model, ids, [s.token for s in spans]) for ids in (tokenizer.encode([source])[0], shorter)
    )
    drop = sum(a - b for a, b, span in zip(full, without, spans, strict=True) if span.end > 4)
    assert scores.shape == (3, 2)
    assert scores[1, 1] == pytest.approx(max(0.0, drop), abs=1e-5)


def test_neighbors_are_removed_together_in_a_very_long_source() -> None:
    model, tokenizer = _translator("recurrent-translator")
    source, target = "dog " * (2 * MAX_OCCLUSIONS - 1), "der Hund"
    (scores,) = occlusion_scores(
        model, (tokenizer,), [(TextWords(source, find_words(source)), TextWords(target, find_words(target)))]
    )
    assert scores.shape == (2 * MAX_OCCLUSIONS - 1, 2)
    assert np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[1], scores[2])


def test_normalization_assigns_each_target_word_to_its_own_source_word() -> None:
    scores = np.array([[0.5, 0.1], [3.0, 8.0]])  # "a man" and "ein Mann": both words depend most on "man"
    assert normalize_scores(scores).argmax(0).tolist() == [0, 1]
    assert (normalize_scores(scores).sum(0) <= 1).all()
    assert np.array_equal(normalize_scores(np.zeros((2, 0))), np.zeros((2, 0)))
