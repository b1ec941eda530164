"""Text metrics equal sacreBLEU; likelihoods convert to perplexity and bits per byte."""

from __future__ import annotations

import math

import pytest
import sacrebleu

from heedful.data.text_size import TextSize
from heedful.evaluation.bleu_tokenizer import BleuTokenizer
from heedful.evaluation.text_metrics import prediction_scores, sample_scores, text_scores

REFERENCES = ["The cat sat on the mat .", "A dog barked at the moon .", "No one knows the way home ."] * 20
OUTPUTS = ["The cat sat on a mat .", "a dog barked at the moon .", "No one knows the way home ."] * 20


def test_bleu_and_chrf_equal_sacrebleu() -> None:
    scores = text_scores(OUTPUTS, REFERENCES)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score)
    assert scores["bleu_lowercased"] == pytest.approx(
        sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], lowercase=True).score
    )
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score)
    sampled = sample_scores(OUTPUTS, REFERENCES, BleuTokenizer("13a"))
    assert (sampled.bleu, sampled.chrf) == pytest.approx((scores["bleu"], scores["chrf"]))
    assert sampled.selection(loss=3.0) == sampled.bleu
    assert scores["bleu_lowercased"] > scores["bleu"]


def test_bleu_has_a_signature_and_a_seeded_interval() -> None:
    scores = text_scores(OUTPUTS, REFERENCES)
    assert "tok:13a" in scores["bleu_signature"]
    assert "version:" in scores["bleu_signature"]
    assert scores["bleu_low"] < scores["bleu"] < scores["bleu_high"]
    assert text_scores(OUTPUTS, REFERENCES) == scores, "the bootstrap is seeded"


def test_interval_of_bleu_stays_between_0_and_100() -> None:
    rare = text_scores([REFERENCES[0], *["nothing alike"] * 19], [REFERENCES[0], *["other words at all"] * 19])
    assert f"{rare['bleu_low']:.1f}" == "0.0"
    assert rare["bleu_low"] >= 0
    assert text_scores(REFERENCES, REFERENCES)["bleu_high"] <= 100


def test_exact_match_counts_equal_texts() -> None:
    assert text_scores(OUTPUTS, REFERENCES)["exact_match"] == pytest.approx(1 / 3)


def test_perplexity_and_bits_per_byte_from_summed_nats() -> None:
    scores = prediction_scores(nats=200.0, tokens=100, size=TextSize(50, 400, 400))
    assert scores["loss"] == 2.0
    assert scores["perplexity"] == pytest.approx(math.exp(2))
    assert scores["word_perplexity"] == pytest.approx(math.exp(4))
    assert scores["bits_per_byte"] == pytest.approx(0.5 / math.log(2))


def test_without_a_matching_4_gram_the_checkpoint_with_the_lower_loss_is_selected() -> None:
    references, tokenizer = ["the cat sat on the mat", "no one knows the answer"], BleuTokenizer("13a")
    outputs = (["x", "y"], ["the cat sat", "no one"], ["the the", "no"], ["the cat sat on a log", "x"])
    scores = [sample_scores(texts, references, tokenizer) for texts in outputs]
    assert [score.has_matches for score in scores] == [False, False, False, True]
    selection = [score.selection(loss) for score, loss in zip(scores, (5.0, 4.0, 3.0, 6.0), strict=True)]
    assert selection == sorted(selection)
    assert len(set(selection)) == 4


def test_text_without_countable_words_has_bits_per_character_instead_of_word_perplexity() -> None:
    scores = prediction_scores(nats=200.0, tokens=100, size=TextSize.measure(["私は学生です。", "2024年1月5日"]))
    assert scores["bits_per_character"] == pytest.approx(200 / 16 / math.log(2))
    assert not {"words", "word_perplexity"} & set(scores)


def test_perplexity_overflow_is_infinite() -> None:
    assert prediction_scores(nats=1e6, tokens=10, size=TextSize(1, 50, 50))["word_perplexity"] == math.inf
