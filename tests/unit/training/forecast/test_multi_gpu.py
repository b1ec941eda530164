"""More devices: what is divided, what is moved, and the table in docs/scaling.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import heedful
from heedful.errors import UsageError
from heedful.training.forecast.forecast import Forecast
from heedful.training.forecast.multi_gpu import NUMBER, Interconnect, StepLoad, gathered_bytes, memory_per_gpu, communication_bytes, forecast_multi_gpu, step_seconds

DOCS = Path(__file__).parents[4] / "docs" / "scaling.md"
PEAK, ATTAINED = 989e12, 0.4
WAYS = ("data parallel", "sharded")
MEMORY = {
    "process": 100,
    "weights": 4000,
    "optimizer": 8000,
    "averages": 4000,
    "activations and gradients": 24_000,
    "evaluation and allocator": 10,
}
LOAD = StepLoad(parameters=1000, gathered=900, seconds=8.0, tokens=100.0, batches=2)


def test_data_parallel_holds_all_state_everywhere_and_divides_activations() -> None:
    each = memory_per_gpu(MEMORY, LOAD, 4, "data parallel")
    assert (each["weights"], each["optimizer"]) == (4000, 8000)
    assert each["gradients"] == 4000
    assert each["activations"] == 5000
    assert sum(memory_per_gpu(MEMORY, LOAD, 1, "data parallel").values()) == sum(MEMORY.values())


def test_shards_divide_state_and_hold_what_is_gathered() -> None:
    each = memory_per_gpu(MEMORY, LOAD, 4, "sharded")
    assert {name: each[name] for name in ("weights", "optimizer", "averages", "gradients", "gathered")} == {
        "weights": 1000,
        "optimizer": 2000,
        "averages": 1000,
        "gradients": 1000,
        "gathered": 900,
    }
    assert each["process"] == 100


def test_an_all_reduce_moves_twice_the_weights_and_shards_three_times_for_every_batch() -> None:
    many = 1_000_000
    assert communication_bytes(LOAD, many, "data parallel") == pytest.approx(2 * 1000 * NUMBER, rel=1e-5)
    assert communication_bytes(LOAD, many, "sharded") == pytest.approx(2 * 3 * 1000 * NUMBER, rel=1e-5)
    assert communication_bytes(LOAD, 1, "data parallel") == communication_bytes(LOAD, 1, "sharded") == 0


def test_computing_is_divided_and_moving_is_not() -> None:
    links = Interconnect(in_a_node=1000.0, between_nodes=100.0, hidden={"data parallel": 0.0, "sharded": 0.5})
    assert step_seconds(LOAD, 1, "data parallel", links) == 8.0
    assert step_seconds(LOAD, 8, "data parallel", links) == pytest.approx(1 + 7.0)
    assert step_seconds(LOAD, 8, "sharded", links) == pytest.approx(1 + 21.0 - 1.0), (
        "no more is hidden than is computed"
    )
    fast = replace(links, in_a_node=1e5)
    assert step_seconds(LOAD, 8, "sharded", fast) == pytest.approx(1 + 0.5 * 0.21)


def test_gradients_are_hidden_behind_the_way_back_of_the_last_batch() -> None:
    links = Interconnect(in_a_node=1000.0, hidden={"data parallel": 0.9, "sharded": 0.0})
    moving = 7.0
    for batches in (1, 4):
        load = replace(LOAD, batches=batches)
        assert step_seconds(load, 8, "data parallel", links) == pytest.approx(1 + moving - 2 / 3 / batches)
    slow = replace(LOAD, seconds=800.0)
    assert step_seconds(slow, 8, "data parallel", links) == pytest.approx(100 + 0.1 * moving)


def test_gradients_that_come_all_at_once_are_not_hidden() -> None:
    plain, at_once = (Interconnect.for_step(gradients_at_end=at_once) for at_once in (False, True))
    assert step_seconds(LOAD, 8, "data parallel", at_once) > step_seconds(LOAD, 8, "data parallel", plain)
    assert step_seconds(LOAD, 8, "sharded", at_once) == step_seconds(LOAD, 8, "sharded", plain)
    assert "0% of moving hidden if data parallel, 70% of moving hidden if sharded" in at_once.words(8)


def test_batches_that_can_be_dealt_out_are() -> None:
    config = heedful.preset("laptop-writer", vocabulary=300)
    even, odd = (forecast_multi_gpu(forecast(), config, 4, batches).ways["sharded"].moved for batches in (8, 6))
    assert odd == 3 * even, "two batches each, or a quarter of the rows of six"


def forecast() -> Forecast:
    return Forecast("cuda", {"all": 1000}, MEMORY, 10**9, 1e12, 100.0, 4000, 16_000, 50, 2, 8.0, 1.0, "measured")


def test_the_forecast_says_both_ways_and_what_it_assumes() -> None:
    config = heedful.preset("laptop-writer", vocabulary=300)
    found = forecast_multi_gpu(forecast(), config, 8)
    words = str(found)
    for part in ("on 8 devices like this one", *WAYS, "tokens to predict a second", "assumed: 300 GB/s"):
        assert part in words
    told = json.loads(found.to_json())
    assert told["gpus"] == 8
    assert told["ways"]["sharded"]["peak_memory"] == sum(told["ways"]["sharded"]["memory"].values())
    with pytest.raises(UsageError, match="--gpus must be positive"):
        forecast_multi_gpu(forecast(), config, 0)
    with pytest.raises(UsageError, match="a step has 100 tokens to predict, for no more devices"):
        forecast_multi_gpu(forecast(), config, 101)


def test_what_is_gathered_is_the_tables_and_two_blocks() -> None:
    config = heedful.preset("laptop-writer", vocabulary=300, width=32, layers=4)
    model = heedful.build(config)
    blocks = [sum(weight.numel() for weight in block.parameters()) for block in model.decoder.blocks]
    rest = sum(weight.numel() for weight in model.parameters()) - sum(blocks)
    assert gathered_bytes(config) == NUMBER * (rest + 2 * blocks[0])


BIG = ("the paper's big model", 213_000_000, 25_000, 300_000)
SEVEN = ("a 7B decoder", 6_740_000_000, 4_194_304, 33_400)
AT_ONCE = 16_384
"""Tokens that one GPU goes through at one time: more come one batch after the other."""


def table() -> list[str]:
    """The rows of docs/scaling.md."""
    rows = []
    for name, parameters, tokens, steps in (BIG, SEVEN):
        for gpus in (8, 64, 1024):
            for way in WAYS:
                batches = max(1, -(-tokens // (gpus * AT_ONCE)))
                load = StepLoad(parameters, 0, 6 * parameters * tokens / (PEAK * ATTAINED), float(tokens), batches)
                seconds = step_seconds(load, gpus, way, Interconnect())
                # weights, gradients, two moments and an average
                state = 5 * NUMBER * parameters / (gpus if way == "sharded" else 1)
                rows.append(
                    f"| {name} | {gpus:,} | {way} | {size(state)} | {size(communication_bytes(load, gpus, way))} | "
                    f"{tokens / seconds:,.0f} | {load.seconds / gpus / seconds:.0%} | {days(steps * seconds)} |"
                )
    return rows


def size(number: float) -> str:
    return f"{number / 1e12:.3g} TB" if number >= 1e12 else f"{number / 1e9:.3g} GB"


def days(seconds: float) -> str:
    return f"{seconds / 86400:.3g} days" if seconds > 86400 else f"{seconds / 3600:.3g} h"


def test_the_table_in_the_docs_is_what_the_formulas_give() -> None:
    text = DOCS.read_text()
    for row in table():
        assert row in text
