"""Calibration: whether probabilities mean what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.data.pair_dataset import PairBatches
from heedful.data.token_store import Sequences
from heedful.evaluation.calibration import (
    draw_reliability,
    word_correctness,
    reliability_curve,
    matching_words,
    token_reliability,
)


def test_the_error_is_the_mean_distance_between_said_and_true() -> None:
    assert reliability_curve([0.8] * 10, [True] * 8 + [False] * 2).error == pytest.approx(0.0)
    assert reliability_curve([1.0] * 10, [True] * 8 + [False] * 2).error == pytest.approx(0.2)
    both = reliability_curve([0.05] * 30 + [0.95] * 10, [False] * 30 + [False] * 10)
    assert both.error == pytest.approx((30 * 0.05 + 10 * 0.95) / 40)
    assert both.count.tolist() == [30, 10]
    assert reliability_curve([], []).error == 0


@pytest.mark.parametrize(
    ("written", "reference", "right"),
    [
        ("a dog runs", "a dog runs", "111"),
        ("a dog runs", "the dog is running", "010"),
        ("the the the dog", "the dog", "0011"),
        ("dog a", "a dog", "10"),
        ("", "a dog", ""),
        ("a", "", "0"),
    ],
)
def test_a_word_is_right_if_the_reference_has_it_in_the_same_order(written: str, reference: str, right: str) -> None:
    found = matching_words(written.split(), reference.split())
    assert "".join(str(int(word)) for word in found) == right


def test_words_are_judged_in_their_unit() -> None:
    said, right = word_correctness([[("2", 0.9), ("0", 0.8)], []], ["21", "x"], "characters")
    assert (said, right) == ([0.9, 0.8], [True, False])


def test_tokens_are_judged_by_the_likeliest_at_every_real_position() -> None:
    """Against the logits of the whole model, one text at a time."""
    model = heedful.build("laptop-translator", vocabulary=30, width=16, heads=2, layers=1).eval()
    texts = [[7, 8, 9], [10], [11, 12, 13, 14, 15]]
    batches = PairBatches(Sequences.from_lists(texts), Sequences.from_lists(texts), max_tokens=64, seed=0, shuffle=False)
    said, right = [], []
    for text in texts:
        one = Sequences.from_lists([text])
        batch = PairBatches(one, one, max_tokens=64, seed=0, shuffle=False).batch(0, np.array([0]))
        with torch.inference_mode():
            best, token = model(batch.source, batch.target)[0].softmax(-1).max(-1)
        said += best.tolist()
        right += (token == batch.labels[0]).tolist()
    found = token_reliability(model, batches)
    assert found.count.sum() == len(said) == 12
    assert found.error == pytest.approx(reliability_curve(said, right).error, abs=1e-5)


def test_the_picture_is_a_picture(tmp_path: Path) -> None:
    draw_reliability({"raw": reliability_curve([0.2, 0.9], [False, True])}, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
