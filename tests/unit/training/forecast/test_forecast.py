"""Arithmetic and text of forecasts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heedful.errors import HeedfulError
from heedful.training.forecast.forecast import Forecast, TrainingUsage, compare_forecast
from heedful.training.recipe import TrainingRecipe

FORECAST = Forecast(
    device="cpu",
    parameters={"token vectors": 3_000_000, "decoder feed-forward": 1_000_000},
    memory={"process": 300 << 20, "weights": 16 << 20, "activations and gradients": 184 << 20, "allocator": 0},
    available=1 << 30,
    flops=2.5e10,
    labels=1000.0,
    checkpoint=16 << 20,
    disk=64 << 20,
    steps=100,
    evaluations=4,
    seconds_per_step=0.5,
    seconds_per_evaluation=2.0,
    timing="measured",
    limit=80.0,
    setup_phases={"reading": 8.0, "dry run": 2.0},
    final_phases={"scores": 12.0, "report": 3.0},
)


def test_duration_includes_every_phase_from_the_command_to_the_report() -> None:
    assert FORECAST.phases == pytest.approx(
        {"reading": 8, "dry run": 2, "training": 50, "evaluations": 8, "scores": 12, "report": 3}
    )
    assert FORECAST.seconds == pytest.approx(83.0)
    assert FORECAST.training_seconds(50) == pytest.approx(29.0)
    assert FORECAST.peak_memory == 500 << 20


def test_evaluations_take_a_small_share_of_the_time() -> None:
    assert FORECAST.evaluation_count(100) == 2  # 4% of 50 s, 2 s each, but no fewer than two
    assert FORECAST.evaluation_count(500) == 5
    assert FORECAST.evaluation_count(10_000) == 12
    assert FORECAST.evaluation_count(1) == 2


@pytest.mark.parametrize("seconds", [30.0, 100.0, 600.0])
def test_steps_fit_the_time_and_fill_it(seconds: float) -> None:
    steps = FORECAST.steps_within(seconds)
    every = -(-steps // FORECAST.evaluation_count(steps))
    run = FORECAST.for_run(TrainingRecipe(steps=steps, evaluate_every=every))
    assert 0.93 * seconds < run.training_seconds(steps) <= seconds + 1e-9


def test_forecast_and_usage_are_compared_for_the_steps_trained() -> None:
    usage = TrainingUsage(steps=50, labels=50_000, peak_memory=550 << 20)
    phases = {"start-up": 3.0, "reading": 7.0, "training": 58.0, "scores": 6.0, "report": 3.0}
    rows = compare_forecast(FORECAST, usage, 77.0, phases)
    assert {row.name: row.ratio for row in rows} == pytest.approx(
        {
            "peak memory": 1.1,
            "time": 77 / (10 + 29 + 15),
            "time of training": 2.0,
            "time of scores": 0.5,
            "time of report": 1.0,
            "tokens per second": 0.5,
        }
    )
    assert rows[0].formatted() == ("peak memory", "500 MiB", "550 MiB (+10%)")
    assert rows[2].formatted() == ("time of training", "29s", "58s (+100%)")


def test_a_resumed_run_is_compared_by_its_whole_time_only() -> None:
    rows = compare_forecast(FORECAST, TrainingUsage(100, 100_000, 1), 90.0, {"training": 5.0})
    assert "tokens per second" not in {row.name for row in rows}


def test_a_limit_that_the_fixed_phases_exceed_is_named_before_training() -> None:
    assert not FORECAST.exceeds_limit, "within the error of a forecast"
    assert replace(FORECAST, limit=60.0).exceeds_limit
    assert not replace(FORECAST, limit=None).exceeds_limit
    overrun = replace(FORECAST, limit=60.0).describe_overrun()
    assert all(part in overrun for part in ("1m00s", "10s", "15s", "100 steps", "1m23s"))


def test_forecast_as_text_and_as_json() -> None:
    text = str(FORECAST)
    for part in ("4,000,000", "token vectors", "25 GFLOP", "500 MiB", "1m23s", "reading 8s", "16 MiB", "measured"):
        assert part in text
    assert "will not fit" not in text
    values = json.loads(FORECAST.to_json())
    assert values["peak_memory"] == 500 << 20
    assert values["seconds"] == pytest.approx(83.0)
    assert values["phases"]["scores"] == 12.0
    assert values["fits"]


def test_a_model_that_does_not_fit_is_refused() -> None:
    large = Forecast(**{**FORECAST.__dict__, "available": 100 << 20})
    assert not large.fits
    with pytest.raises(HeedfulError, match=r"training needs 500 MiB of memory, 100 MiB are available"):
        large.check_memory()
    FORECAST.check_memory()
    assert "training.batch_tokens" in str(large)
