"""Text metrics equal sacreBLEU; likelihoods convert to perplexity and bits per byte."""

from __future__ import annotations

import math

import pytest
import sacrebleu

from heedful.evaluation.text_metrics import prediction_scores, sample_bleu, text_scores

REFERENCES = ["The cat sat on the mat .", "A dog barked at the moon .", "No one knows the way home ."] * 20
OUTPUTS = ["The cat sat on a mat .", "a dog barked at the moon .", "No one knows the way home ."] * 20


def test_bleu_and_chrf_equal_sacrebleu() -> None:
    scores = text_scores(OUTPUTS, REFERENCES)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score)
    assert scores["bleu_lowercased"] == pytest.approx(
        sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], lowercase=True).score
    )
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score)
    assert scores["bleu"] == pytest.approx(sample_bleu(OUTPUTS, REFERENCES))
    assert scores["bleu_lowercased"] > scores["bleu"]


def test_bleu_has_a_signature_and_a_seeded_interval() -> None:
    scores = text_scores(OUTPUTS, REFERENCES)
    assert "tok:13a" in scores["bleu_signature"]
    assert "version:" in scores["bleu_signature"]
    assert scores["bleu_low"] < scores["bleu"] < scores["bleu_high"]
    assert text_scores(OUTPUTS, REFERENCES) == scores, "the bootstrap is seeded"


def test_exact_match_counts_equal_texts() -> None:
    assert text_scores(OUTPUTS, REFERENCES)["exact_match"] == pytest.approx(1 / 3)


def test_perplexity_and_bits_per_byte_from_summed_nats() -> None:
    scores = prediction_scores(nats=200.0, tokens=100, words=50, size=400)
    assert scores["loss"] == 2.0
    assert scores["perplexity"] == pytest.approx(math.exp(2))
    assert scores["word_perplexity"] == pytest.approx(math.exp(4))
    assert scores["bits_per_byte"] == pytest.approx(0.5 / math.log(2))


def test_perplexity_overflow_is_infinite() -> None:
    assert prediction_scores(nats=1e6, tokens=10, words=1, size=50)["word_perplexity"] == math.inf
