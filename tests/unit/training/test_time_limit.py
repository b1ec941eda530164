"""What each phase may take of a run's time limit."""

from __future__ import annotations

import time

import pytest

from heedful.device import process_start
from heedful.training.forecast.final_costs import REPORT_SECONDS, FinalCosts, LinearCost
from heedful.training.time_limit import CALIBRATION_TEXTS, FEWEST_TEXTS, TimeAllocation

COSTS = FinalCosts(calibration=LinearCost(1.0, 0.02), scores=LinearCost(0.5, 0.01))


def test_training_gets_what_the_other_phases_leave() -> None:
    allocation = TimeAllocation.within(60.0, 15.0, COSTS, scored_texts=3000)
    assert allocation.calibration_texts == 250  # a tenth of the time, less the fixed second
    assert allocation.final_phases == pytest.approx({"calibration": 6.0, "scores": 6.0, "report": REPORT_SECONDS})
    assert allocation.training == pytest.approx(0.98 * 60 - 15 - 12 - REPORT_SECONDS)


def test_a_long_run_calibrates_and_scores_on_everything() -> None:
    allocation = TimeAllocation.within(3600.0, 15.0, COSTS, scored_texts=3000)
    assert allocation.calibration_texts == CALIBRATION_TEXTS
    assert allocation.final_phases["scores"] == pytest.approx(30.5)
    assert TimeAllocation.within(None, 15.0, COSTS, scored_texts=3000).calibration_texts == CALIBRATION_TEXTS


def test_a_limit_exceeded_before_training_leaves_no_steps_but_a_few_texts_to_score() -> None:
    allocation = TimeAllocation.within(10.0, 30.0, COSTS, scored_texts=3000)
    assert allocation.training == 0.0
    assert allocation.calibration_texts == FEWEST_TEXTS
    assert allocation.final_phases["scores"] == pytest.approx(0.5 + 0.01 * FEWEST_TEXTS)


def test_test_texts_are_all_scored_and_their_time_is_taken_from_training() -> None:
    allocation = TimeAllocation.within(60.0, 15.0, COSTS, scored_texts=3000, test_texts=2000)
    phases = {"calibration": 6.0, "test scores": 20.5, "report": REPORT_SECONDS}
    assert allocation.final_phases == pytest.approx(phases)
    assert allocation.training == pytest.approx(0.98 * 60 - 15 - 26.5 - REPORT_SECONDS)


def test_a_linear_cost_is_fitted_to_two_measurements() -> None:
    cost = LinearCost.measure(lambda texts: time.sleep(0.02 + 0.002 * texts), 40)
    assert cost.seconds(100) == pytest.approx(0.22, rel=0.3)
    assert cost.texts_within(0.0, least=10, most=100) == 10
    assert cost.texts_within(1e6, least=10, most=100) == 100


def test_the_command_is_timed_from_the_start_of_its_process() -> None:
    assert time.monotonic() - process_start() >= time.process_time() * 0.5
    assert process_start() == pytest.approx(process_start(), abs=0.1)
