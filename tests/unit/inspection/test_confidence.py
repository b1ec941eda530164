"""Confidence: a correction that makes probabilities mean what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.errors import CheckpointError
from heedful.evaluation.calibration import reliability_curve
from heedful.inspection.confidence import CONFIDENCE_FILE, Confidence, fit_confidence, logit, sigmoid


def modest(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities squeezed towards a half, as smoothed labels leave them, and outcomes by the true ones."""
    draw = np.random.default_rng(seed)
    true = sigmoid(draw.normal(1.0, 2.0, size))
    return sigmoid(0.5 * logit(true) - 0.3), draw.random(size) < true


def test_a_fit_undoes_what_squeezed_the_probabilities() -> None:
    said, right = modest(20_000)
    found = fit_confidence(said.tolist(), right.tolist())
    assert found.slope == pytest.approx(2.0, abs=0.1)
    assert found.shift == pytest.approx(0.6, abs=0.1)
    assert found.words == 20_000


def test_on_other_words_the_corrected_error_is_a_fraction_of_the_raw_one() -> None:
    found = fit_confidence(*(values.tolist() for values in modest(2000, seed=1)))
    said, right = modest(20_000, seed=2)
    raw = reliability_curve(said.tolist(), right.tolist()).error
    corrected = reliability_curve([found(p) for p in said.tolist()], right.tolist()).error
    assert raw > 0.1
    assert corrected < 0.03


def test_a_correction_keeps_the_order_and_stays_a_probability() -> None:
    found = Confidence(slope=0.7, shift=-1.0)
    corrected = [found(p) for p in (0.0, 1e-9, 0.2, 0.5, 0.99, 1.0)]
    assert corrected == sorted(corrected)
    assert all(0 < p < 1 for p in corrected)
    assert Confidence()(0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("said", [[0.2, 0.9] * 50, [0.5] * 100, [1.0] * 100])
def test_a_model_that_is_always_or_never_right_has_a_finite_fit(said: list[float], right: bool) -> None:
    found = fit_confidence(said, [right] * 100)
    corrected = [found(p) for p in said]
    assert all(p > 0.95 if right else p < 0.05 for p in corrected)


def test_what_is_less_likely_than_all_it_was_fitted_on_is_not_called_sure() -> None:
    found = fit_confidence([0.6, 0.9, 0.99] * 100, [True] * 300)
    assert found(0.6) > 0.95
    assert found(0.3) == pytest.approx(found(0.6) / 2, rel=0.05)
    assert found(0.001) < 0.01
    assert found(0.0) == 0.0


def test_no_words_are_too_far_apart_for_a_fit() -> None:
    """Newton's method alone would be thrown off by a few words of hardly any probability."""
    draw = np.random.default_rng(3)
    said = np.concatenate([draw.random(200), np.full(20, 1e-12)])
    right = [*(draw.random(200) < 0.1).tolist(), *[True] * 3, *[False] * 17]
    found = fit_confidence(said.tolist(), right)
    assert 0 <= found.slope < 2
    assert abs(found.shift) < 5


def test_where_probability_says_nothing_all_words_get_the_same() -> None:
    found = fit_confidence([0.1, 0.9] * 500, [True, False] * 500)
    assert found(0.1) == pytest.approx(found(0.9))
    assert found(0.1) == pytest.approx(0.5, abs=0.01)
    assert fit_confidence([], []) == Confidence()


def test_what_was_fitted_comes_back_from_the_folder_and_damage_is_named(tmp_path: Path) -> None:
    assert Confidence.read_json(tmp_path / CONFIDENCE_FILE) is None
    found = Confidence(slope=1.5, shift=-0.5, words=10, texts=2)
    (tmp_path / CONFIDENCE_FILE).write_text(found.model_dump_json())
    assert Confidence.read_json(tmp_path / CONFIDENCE_FILE) == found
    (tmp_path / CONFIDENCE_FILE).write_text("no")
    with pytest.raises(CheckpointError, match=r"confidence\.json is damaged"):
        Confidence.read_json(tmp_path / CONFIDENCE_FILE)
