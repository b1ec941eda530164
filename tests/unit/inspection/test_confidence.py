"""Confidence: Platt scaling of word probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.errors import CheckpointError
from heedful.evaluation.calibration import reliability_curve
from heedful.inspection.confidence import Confidence, fit_confidence, logit, sigmoid


def underconfident(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities squeezed towards 0.5, as label smoothing does, and outcomes drawn from the true ones."""
    generator = np.random.default_rng(seed)
    true = sigmoid(generator.normal(1.0, 2.0, size))
    return sigmoid(0.5 * logit(true) - 0.3), generator.random(size) < true


def test_fit_recovers_slope_and_shift() -> None:
    probabilities, correct = underconfident(20_000)
    confidence = fit_confidence(probabilities.tolist(), correct.tolist())
    assert confidence.slope == pytest.approx(2.0, abs=0.1)
    assert confidence.shift == pytest.approx(0.6, abs=0.1)
    assert confidence.words == 20_000


def test_calibration_error_falls_on_held_out_words() -> None:
    confidence = fit_confidence(*(values.tolist() for values in underconfident(2000, seed=1)))
    probabilities, correct = underconfident(20_000, seed=2)
    raw = reliability_curve(probabilities.tolist(), correct.tolist()).error
    corrected = reliability_curve([confidence(p) for p in probabilities.tolist()], correct.tolist()).error
    assert raw > 0.1
    assert corrected < 0.03


def test_correction_is_monotonic_and_stays_a_probability() -> None:
    confidence = Confidence(slope=0.7, shift=-1.0)
    corrected = [confidence(p) for p in (0.0, 1e-9, 0.2, 0.5, 0.99, 1.0)]
    assert corrected == sorted(corrected)
    assert all(0 < p < 1 for p in corrected)
    assert Confidence()(0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("probabilities", [[0.2, 0.9] * 50, [0.5] * 100, [1.0] * 100])
def test_fit_is_finite_if_all_words_are_correct_or_all_wrong(probabilities: list[float], correct: bool) -> None:
    confidence = fit_confidence(probabilities, [correct] * 100)
    corrected = [confidence(p) for p in probabilities]
    assert all(p > 0.95 if correct else p < 0.05 for p in corrected)


def test_confidence_falls_below_the_lowest_fitted_probability() -> None:
    confidence = fit_confidence([0.6, 0.9, 0.99] * 100, [True] * 300)
    assert confidence(0.6) > 0.95
    assert confidence(0.3) == pytest.approx(confidence(0.6) / 2, rel=0.05)
    assert confidence(0.001) < 0.01
    assert confidence(0.0) == 0.0


def test_fit_converges_with_extreme_probabilities() -> None:
    """Newton's method without line search diverges here."""
    generator = np.random.default_rng(3)
    probabilities = np.concatenate([generator.random(200), np.full(20, 1e-12)])
    correct = [*(generator.random(200) < 0.1).tolist(), *[True] * 3, *[False] * 17]
    confidence = fit_confidence(probabilities.tolist(), correct)
    assert 0 <= confidence.slope < 2
    assert abs(confidence.shift) < 5


def test_uninformative_probabilities_get_a_constant_confidence() -> None:
    confidence = fit_confidence([0.1, 0.9] * 500, [True, False] * 500)
    assert confidence(0.1) == pytest.approx(confidence(0.9))
    assert confidence(0.1) == pytest.approx(0.5, abs=0.01)
    assert fit_confidence([], []) == Confidence()


def test_confidence_round_trips_and_damage_is_reported() -> None:
    confidence, file = Confidence(slope=1.5, shift=-0.5, words=10, texts=2), Path("confidence.json")
    assert Confidence.from_json(confidence.to_file().encode(), file) == confidence
    with pytest.raises(CheckpointError, match=r"confidence\.json"):
        Confidence.from_json(b"no", file)
