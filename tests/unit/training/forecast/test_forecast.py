"""Arithmetic and text of forecasts."""

from __future__ import annotations

import json

import pytest

from heedful.errors import HeedfulError
from heedful.training.forecast.forecast import Forecast, compare_forecast, format_bytes, format_flops
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
)


def test_duration_includes_steps_and_evaluations() -> None:
    assert FORECAST.seconds == pytest.approx(58.0)
    assert FORECAST.seconds_for(50) == pytest.approx(29.0)
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
    assert 0.93 * seconds < run.seconds <= seconds + 1e-9


def test_forecast_and_usage_are_compared_for_the_steps_trained() -> None:
    rows = compare_forecast(FORECAST, steps=50, labels=50_000, seconds=58.0, peak_memory=550 << 20)
    assert {row.name: row.ratio for row in rows} == pytest.approx(
        {"peak memory": 1.1, "time": 2.0, "tokens per second": 0.5}
    )
    assert rows[0].formatted() == ("peak memory", "500 MiB", "550 MiB (+10%)")
    assert rows[1].formatted() == ("time", "29s", "58s (+100%)")


def test_forecast_as_text_and_as_json() -> None:
    text = str(FORECAST)
    for part in ("4,000,000", "token vectors", "25 GFLOP", "500 MiB", "58s", "16 MiB", "measured"):
        assert part in text
    assert "will not fit" not in text
    values = json.loads(FORECAST.to_json())
    assert values["peak_memory"] == 500 << 20
    assert values["seconds"] == pytest.approx(58.0)
    assert values["fits"]


def test_a_model_that_does_not_fit_is_refused() -> None:
    large = Forecast(**{**FORECAST.__dict__, "available": 100 << 20})
    assert not large.fits
    with pytest.raises(HeedfulError, match=r"training needs 500 MiB of memory, 100 MiB are available"):
        large.check_memory()
    FORECAST.check_memory()
    assert "training.batch_tokens" in str(large)


def test_bytes_and_flops_are_formatted_with_units() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1536) == "1.5 KiB"
    assert format_bytes(3 << 40) == "3 TiB"
    assert format_flops(2.5e12) == "2.5 TFLOP"
    assert format_flops(0) == "0 FLOP"
