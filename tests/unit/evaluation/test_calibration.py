"""Calibration error, word correctness and token reliability."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.data.pair_dataset import PairBatches
from heedful.data.token_store import Sequences
from heedful.evaluation.calibration import (
    draw_reliability,
    fit_useful_confidence,
    matching_words,
    reliability_curve,
    token_reliability,
    word_correctness,
)
from heedful.inspection.confidence import logit, sigmoid


def test_calibration_error_is_the_weighted_gap_between_confidence_and_accuracy() -> None:
    assert reliability_curve([0.8] * 10, [True] * 8 + [False] * 2).error == pytest.approx(0.0)
    assert reliability_curve([1.0] * 10, [True] * 8 + [False] * 2).error == pytest.approx(0.2)
    two_bins = reliability_curve([0.05] * 30 + [0.95] * 10, [False] * 30 + [False] * 10)
    assert two_bins.error == pytest.approx((30 * 0.05 + 10 * 0.95) / 40)
    assert two_bins.count == [30, 10]
    assert reliability_curve([], []).error == 0


@pytest.mark.parametrize(
    ("hypothesis", "reference", "correct"),
    [
        ("a dog runs", "a dog runs", "111"),
        ("a dog runs", "the dog is running", "010"),
        ("the the the dog", "the dog", "0011"),
        ("dog a", "a dog", "10"),
        ("", "a dog", ""),
        ("a", "", "0"),
    ],
)
def test_word_is_correct_if_the_reference_has_it_in_the_same_order(
    hypothesis: str, reference: str, correct: str
) -> None:
    result = matching_words(hypothesis.split(), reference.split())
    assert "".join(str(int(word)) for word in result) == correct


def test_word_correctness_respects_the_unit() -> None:
    probabilities, correct = word_correctness([[("2", 0.9), ("0", 0.8)], []], ["21", "x"], "characters")
    assert (probabilities, correct) == ([0.9, 0.8], [True, False])


def test_token_reliability_matches_single_text_logits() -> None:
    """Compare with the full logits of one text at a time."""
    model = heedful.build("laptop-translator", vocabulary=30, width=16, heads=2, layers=1).eval()
    texts = [[7, 8, 9], [10], [11, 12, 13, 14, 15]]
    batches = PairBatches(
        Sequences.from_lists(texts), Sequences.from_lists(texts), max_tokens=64, seed=0, shuffle=False
    )
    probabilities, correct = [], []
    for text in texts:
        single = Sequences.from_lists([text])
        batch = PairBatches(single, single, max_tokens=64, seed=0, shuffle=False).batch(0, np.array([0]))
        with torch.inference_mode():
            best, token = model(batch.source, batch.target)[0].softmax(-1).max(-1)
        probabilities += best.tolist()
        correct += (token == batch.labels[0]).tolist()
    result = token_reliability(model, batches)
    assert sum(result.count) == len(probabilities) == 12
    assert result.error == pytest.approx(reliability_curve(probabilities, correct).error, abs=1e-5)


def test_reliability_plot_is_written(tmp_path: Path) -> None:
    draw_reliability({"raw": asdict(reliability_curve([0.2, 0.9], [False, True]))}, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def outcomes(texts: int, distortion: float) -> tuple[list[list[tuple[str, float]]], list[str]]:
    """Texts of eight words and their references; a word's logit is the true one times `distortion`."""
    generator = np.random.default_rng(texts)
    true = sigmoid(generator.normal(1.0, 2.0, (texts, 8)))
    correct = generator.random((texts, 8)) < true
    stated = sigmoid(distortion * logit(true))
    words = [[(f"w{column}", float(p)) for column, p in enumerate(row)] for row in stated]
    references = [" ".join(f"w{column}" if right else "x" for column, right in enumerate(row)) for row in correct]
    return words, references


def test_calibrated_probabilities_are_not_corrected() -> None:
    for texts in (1, 2, 20, 150, 300):
        assert fit_useful_confidence(*outcomes(texts, 1.0), "words").is_identity


def test_a_correction_that_helps_held_out_words_is_fitted_on_all_texts() -> None:
    words, references = outcomes(150, 0.4)
    confidence = fit_useful_confidence(words, references, "words")
    assert confidence.slope == pytest.approx(2.5, abs=0.5)
    assert (confidence.texts, confidence.words) == (150, 1200)
