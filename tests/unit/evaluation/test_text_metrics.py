"""Scores: what others would compute, with what it takes to compare them."""

from __future__ import annotations

import math

import pytest
import sacrebleu

from heedful.evaluation.text_metrics import prediction_scores, sample_bleu, text_scores

REFERENCES = ["The cat sat on the mat .", "A dog barked at the moon .", "Nobody knows the way home ."] * 20
OUTPUTS = ["The cat sat on a mat .", "a dog barked at the moon .", "Nobody knows the way home ."] * 20


def test_bleu_and_chrf_are_sacrebleus_own() -> None:
    scores = text_scores(OUTPUTS, REFERENCES, samples=100)
    assert scores.bleu == pytest.approx(sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score)
    assert scores.bleu_lowercased == pytest.approx(sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], lowercase=True).score)
    assert scores.chrf == pytest.approx(sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score)
    assert scores.bleu == pytest.approx(sample_bleu(OUTPUTS, REFERENCES))
    assert scores.bleu_lowercased > scores.bleu


def test_a_bleu_carries_its_signature_and_an_interval_around_it() -> None:
    scores = text_scores(OUTPUTS, REFERENCES, samples=200)
    assert "tok:13a" in scores.bleu_signature
    assert "version:" in scores.bleu_signature
    assert scores.bleu_low < scores.bleu < scores.bleu_high
    assert text_scores(OUTPUTS, REFERENCES, samples=200) == scores, "the bootstrap is seeded"


def test_exact_match_counts_equal_texts() -> None:
    assert text_scores(OUTPUTS, REFERENCES, samples=0).exact_match == pytest.approx(1 / 3)


def test_perplexities_and_bits_are_one_surprise_in_different_units() -> None:
    scores = prediction_scores(nats=200.0, tokens=100, words=50, size=400)
    assert scores.loss == 2.0
    assert scores.perplexity == pytest.approx(math.exp(2))
    assert scores.word_perplexity == pytest.approx(math.exp(4))
    assert scores.bits_per_byte == pytest.approx(0.5 / math.log(2))


def test_a_hopeless_model_has_an_infinite_perplexity_not_an_error() -> None:
    assert prediction_scores(nats=1e6, tokens=10, words=1, size=50).word_perplexity == math.inf
