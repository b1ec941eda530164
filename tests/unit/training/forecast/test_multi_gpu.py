"""Forecasts for several GPUs: memory, communication, time, and the table in docs/scaling.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import heedful
from heedful.errors import UsageError
from heedful.training.forecast.forecast import Forecast
from heedful.training.forecast.multi_gpu import (
    ELEMENT_BYTES,
    Interconnect,
    StepLoad,
    communication_bytes,
    forecast_multi_gpu,
    gathered_bytes,
    memory_per_gpu,
    step_seconds,
)

DOCS = Path(__file__).parents[4] / "docs" / "scaling.md"
PEAK_FLOPS, UTILIZATION = 989e12, 0.4
STRATEGIES = ("data parallel", "sharded")
MEMORY = {
    "process": 100,
    "weights": 4000,
    "optimizer": 8000,
    "averages": 4000,
    "activations and gradients": 24_000,
    "evaluation and allocator": 10,
}
LOAD = StepLoad(parameters=1000, gathered=900, seconds=8.0, batches=2)


def test_data_parallel_holds_all_state_everywhere_and_divides_activations() -> None:
    memory = memory_per_gpu(MEMORY, LOAD, 4, "data parallel")
    assert (memory["weights"], memory["optimizer"]) == (4000, 8000)
    assert memory["gradients"] == 4000
    assert memory["activations"] == 5000
    assert sum(memory_per_gpu(MEMORY, LOAD, 1, "data parallel").values()) == sum(MEMORY.values())


def test_sharding_divides_state_and_adds_gathered_weights() -> None:
    memory = memory_per_gpu(MEMORY, LOAD, 4, "sharded")
    assert {name: memory[name] for name in ("weights", "optimizer", "averages", "gradients", "gathered")} == {
        "weights": 1000,
        "optimizer": 2000,
        "averages": 1000,
        "gradients": 1000,
        "gathered": 900,
    }
    assert memory["process"] == 100


def test_all_reduce_sends_the_weights_twice_and_sharding_three_times_per_batch() -> None:
    many = 1_000_000
    assert communication_bytes(LOAD, many, "data parallel") == pytest.approx(2 * 1000 * ELEMENT_BYTES, rel=1e-5)
    assert communication_bytes(LOAD, many, "sharded") == pytest.approx(2 * 3 * 1000 * ELEMENT_BYTES, rel=1e-5)
    assert communication_bytes(LOAD, 1, "data parallel") == communication_bytes(LOAD, 1, "sharded") == 0


def test_computation_is_divided_by_gpus_and_communication_is_not() -> None:
    interconnect = Interconnect(in_a_node=1000.0, between_nodes=100.0, overlap={"data parallel": 0.0, "sharded": 0.5})
    assert step_seconds(LOAD, 1, "data parallel", interconnect) == 8.0
    assert step_seconds(LOAD, 8, "data parallel", interconnect) == pytest.approx(1 + 7.0)
    assert step_seconds(LOAD, 8, "sharded", interconnect) == pytest.approx(1 + 21.0 - 1.0), (
        "overlap is limited by computation"
    )
    fast = replace(interconnect, in_a_node=1e5)
    assert step_seconds(LOAD, 8, "sharded", fast) == pytest.approx(1 + 0.5 * 0.21)


def test_all_reduce_overlaps_with_the_backward_pass_of_the_last_batch() -> None:
    interconnect = Interconnect(in_a_node=1000.0, overlap={"data parallel": 0.9, "sharded": 0.0})
    communication = 7.0
    for batches in (1, 4):
        load = replace(LOAD, batches=batches)
        assert step_seconds(load, 8, "data parallel", interconnect) == pytest.approx(
            1 + communication - 2 / 3 / batches
        )
    slow = replace(LOAD, seconds=800.0)
    assert step_seconds(slow, 8, "data parallel", interconnect) == pytest.approx(100 + 0.1 * communication)


def test_gradients_available_at_the_end_of_a_step_do_not_overlap() -> None:
    during, at_end = (Interconnect.for_step(gradients_at_end=at_end) for at_end in (False, True))
    assert step_seconds(LOAD, 8, "data parallel", at_end) > step_seconds(LOAD, 8, "data parallel", during)
    assert step_seconds(LOAD, 8, "sharded", at_end) == step_seconds(LOAD, 8, "sharded", during)
    described = at_end.describe(8)
    assert "0% of communication overlapped if data parallel" in described
    assert "70% of communication overlapped if sharded" in described


def test_whole_batches_are_distributed_if_they_divide_evenly() -> None:
    config = heedful.preset("laptop-writer", vocabulary=300)
    even, odd = (
        forecast_multi_gpu(forecast(), config, 4, batches, Interconnect()).strategies["sharded"].communication
        for batches in (8, 6)
    )
    assert odd == 3 * even, "two batches each, or a quarter of the rows of six"


def forecast() -> Forecast:
    return Forecast("cuda", {"all": 1000}, MEMORY, 10**9, 1e12, 100.0, 4000, 16_000, 50, 2, 8.0, 1.0, "measured")


def test_the_forecast_shows_both_strategies_and_its_assumptions() -> None:
    config = heedful.preset("laptop-writer", vocabulary=300)
    result = forecast_multi_gpu(forecast(), config, 8, 1, Interconnect())
    text = str(result)
    for part in ("on 8 devices like this one", *STRATEGIES, "tokens to predict a second", "assumed: 300 GB/s"):
        assert part in text
    values = json.loads(result.to_json())
    assert values["gpus"] == 8
    assert values["strategies"]["sharded"]["peak_memory"] == sum(values["strategies"]["sharded"]["memory"].values())
    with pytest.raises(UsageError, match="gpus must be positive"):
        forecast_multi_gpu(forecast(), config, 0, 1, Interconnect())
    with pytest.raises(UsageError, match="gpus=101: more than the 100 tokens to predict in a step"):
        forecast_multi_gpu(forecast(), config, 101, 1, Interconnect())


def test_gathered_weights_are_the_embeddings_and_two_blocks() -> None:
    config = heedful.preset("laptop-writer", vocabulary=300, width=32, layers=4)
    model = heedful.build(config)
    blocks = [sum(weight.numel() for weight in block.parameters()) for block in model.decoder.blocks]
    outside = sum(weight.numel() for weight in model.parameters()) - sum(blocks)
    assert gathered_bytes(config) == ELEMENT_BYTES * (outside + 2 * blocks[0])


BIG = ("the paper's big model", 213_000_000, 25_000, 300_000)
SEVEN = ("a 7B decoder", 6_740_000_000, 4_194_304, 33_400)
BATCH_TOKENS = 16_384
"""Tokens in one batch of one GPU; more are accumulated."""


def table() -> list[str]:
    """The rows of docs/scaling.md."""
    rows = []
    for name, parameters, tokens, steps in (BIG, SEVEN):
        for gpus in (8, 64, 1024):
            for strategy in STRATEGIES:
                batches = max(1, -(-tokens // (gpus * BATCH_TOKENS)))
                load = StepLoad(parameters, 0, 6 * parameters * tokens / (PEAK_FLOPS * UTILIZATION), batches)
                seconds = step_seconds(load, gpus, strategy, Interconnect())
                # weights, gradients, two moments and an average
                state = 5 * ELEMENT_BYTES * parameters / (gpus if strategy == "sharded" else 1)
                sent = communication_bytes(load, gpus, strategy)
                rows.append(
                    f"| {name} | {gpus:,} | {strategy} | {size(state)} | {size(sent)} | "
                    f"{tokens / seconds:,.0f} | {load.seconds / gpus / seconds:.0%} | {days(steps * seconds)} |"
                )
    return rows


def size(number: float) -> str:
    return f"{number / 1e12:.3g} TB" if number >= 1e12 else f"{number / 1e9:.3g} GB"


def days(seconds: float) -> str:
    return f"{seconds / 86400:.3g} days" if seconds > 86400 else f"{seconds / 3600:.3g} h"


def test_the_table_in_the_docs_matches_the_formulas() -> None:
    text = DOCS.read_text()
    for row in table():
        assert row in text
