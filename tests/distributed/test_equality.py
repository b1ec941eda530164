"""One, two or three ranks, replicated or sharded: training gives the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

TOLERANCE = {"single": 1e-5, "double": 1e-9}
LOSS_TOLERANCE = 1e-5
"""Losses are summed in single precision."""
WITHOUT_GRADIENT = ("key_value.bias",)
"""A bias on keys shifts all scores of a query equally and has a zero gradient: in single precision, AdamW follows its
rounding errors."""
WITHOUT_SPAN_GRADIENT = ("ends.bias", "blocks.1.residual.1.norm.bias")
"""A bias added at all positions of a passage shifts all their scores equally."""
ENCODERS = ("fill", "classify", "answer")
FAMILIES = ("encoder_decoder", "decoder", "recurrent_decoder", "recurrent_encoder_decoder", *ENCODERS)
NAMES = (
    "in double precision",
    "checkpoint average, 3 batches split by rows",
    "2 whole batches per rank",
    "fewer rows than ranks",
    "layer-wise learning rates",
    "skipped steps",
)
RESUMED = ("resumed", "resumed, sharded", "resumed from shards")


@pytest.fixture(scope="module")
def single_process(scenarios: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of a scenario run by a single process."""
    results: dict[str, Any] = {}
    folder = tmp_path_factory.mktemp("single")

    def result(name: str) -> Any:
        if name not in results:
            scenarios.run_scenario(name, folder / name)
            results[name] = scenarios.ScenarioResult.read(folder / name)
        return results[name]

    return result


def assert_same(scenarios: Any, folder: Path, expected: Any) -> None:
    """Compare losses, checkpoints, progress and the best model."""
    result = scenarios.ScenarioResult.read(folder)
    assert result.losses == pytest.approx(expected.losses[-len(result.losses) :], abs=LOSS_TOLERANCE, nan_ok=True)
    for part in ("middle", "end"):
        (tensors, progress), (expected_tensors, expected_progress) = getattr(result, part), getattr(expected, part)
        torch.testing.assert_close(tensors, expected_tensors, rtol=0, atol=TOLERANCE["double"])
        numbers = {"loss", "history"}
        assert {key: value for key, value in progress.items() if key not in numbers} == {
            key: value for key, value in expected_progress.items() if key not in numbers
        }
    torch.testing.assert_close(result.best, expected.best, rtol=0, atol=TOLERANCE["double"])


def without(weights: dict[str, torch.Tensor], names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in weights.items() if not name.endswith(names)}


@pytest.mark.parametrize("sharding", ["", ", sharded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_train_every_family_as_one_process_does(
    scenarios: Any, two_ranks: Path, single_process: Any, family: str, sharding: str
) -> None:
    result, expected = scenarios.ScenarioResult.read(two_ranks / "2" / f"{family}{sharding}"), single_process(family)
    assert len(result.losses) == 20
    assert result.losses == pytest.approx(expected.losses, abs=LOSS_TOLERANCE)
    names = (*WITHOUT_GRADIENT, *WITHOUT_SPAN_GRADIENT) if family == "answer" else WITHOUT_GRADIENT
    torch.testing.assert_close(
        without(result.best, names), without(expected.best, names), rtol=0, atol=TOLERANCE["single"]
    )


@pytest.mark.parametrize("sharding", ["", ", sharded"])
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one_process_does(
    scenarios: Any, two_ranks: Path, single_process: Any, name: str, sharding: str
) -> None:
    assert_same(scenarios, two_ranks / "2" / f"{name}{sharding}", single_process(name))


def test_two_ranks_train_with_muon_as_one_process_does(scenarios: Any, two_ranks: Path, single_process: Any) -> None:
    assert_same(scenarios, two_ranks / "2" / "muon", single_process("muon"))


def test_a_nan_loss_on_one_rank_skips_the_step_on_all(scenarios: Any, two_ranks: Path) -> None:
    for sharding in ("", ", sharded"):
        _, progress = scenarios.ScenarioResult.read(two_ranks / "2" / f"skipped steps{sharding}").end
        assert 0 < progress["skipped"] < scenarios.HALF


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["", ", sharded"])
def test_three_ranks_train_as_one_process_does(
    scenarios: Any, three_ranks: Path, single_process: Any, sharding: str
) -> None:
    name = "fewer rows than ranks"
    assert_same(scenarios, three_ranks / f"{name}{sharding}", single_process(name))


@pytest.mark.parametrize("name", RESUMED)
def test_two_ranks_resume_a_run_of_two(scenarios: Any, two_ranks: Path, single_process: Any, name: str) -> None:
    assert_same(scenarios, two_ranks / "2" / name, single_process("in double precision"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_three_ranks_resume_a_run_of_two(scenarios: Any, three_ranks: Path, single_process: Any, name: str) -> None:
    assert_same(scenarios, three_ranks / name, single_process("in double precision"))


@pytest.mark.parametrize("source", ["in double precision", "in double precision, sharded"])
def test_one_process_resumes_a_run_of_two_ranks(
    scenarios: Any, two_ranks: Path, single_process: Any, source: str, tmp_path: Path
) -> None:
    scenarios.run_scenario("resumed", tmp_path / "one", resume=two_ranks / "2" / source)
    assert_same(scenarios, tmp_path / "one", single_process("in double precision"))
