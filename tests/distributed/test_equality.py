"""One process, two or three, with weights whole or in shards: the same training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

CLOSE = {"single": 1e-5, "double": 1e-9}
CLOSE_LOSS = 1e-5
"""Reported losses are summed up in single precision."""
BLIND = ("key_value.bias",)
"""A bias on keys shifts all scores of a query alike and has no gradient: in single precision, AdamW makes steps of mere
rounding there."""
BLIND_TO_PLACES = ("ends.bias", "blocks.1.residual.1.norm.bias")
"""And what is added at all places of a passage alike shifts all their scores."""
ENCODERS = ("fill", "classify", "answer")
FAMILIES = ("encoder_decoder", "decoder", "recurrent_decoder", "recurrent_encoder_decoder", *ENCODERS)
NAMES = (
    "in double precision",
    "last average, 3 batches by rows",
    "2 whole batches each",
    "fewer rows than processes",
    "slower below",
    "steps skipped",
)
RESUMED = ("resumed", "resumed, sharded", "resumed from shards")


@pytest.fixture(scope="module")
def alone(walks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same walk by one process."""
    known: dict[str, Any] = {}
    folder = tmp_path_factory.mktemp("alone")

    def of(name: str) -> Any:
        if name not in known:
            walks.walk(name, folder / name)
            known[name] = walks.Walked.read(folder / name)
        return known[name]

    return of


def assert_same(walks: Any, folder: Path, expected: Any) -> None:
    """All that a walk leaves behind."""
    found = walks.Walked.read(folder)
    assert found.losses == pytest.approx(expected.losses[-len(found.losses) :], abs=CLOSE_LOSS, nan_ok=True)
    for part in ("middle", "end"):
        (tensors, facts), (right, wanted) = getattr(found, part), getattr(expected, part)
        torch.testing.assert_close(tensors, right, rtol=0, atol=CLOSE["double"])
        numbers = {"loss", "history"}
        assert {key: value for key, value in facts.items() if key not in numbers} == {
            key: value for key, value in wanted.items() if key not in numbers
        }
    torch.testing.assert_close(found.saved, expected.saved, rtol=0, atol=CLOSE["double"])


def seen(weights: dict[str, torch.Tensor], blind: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in weights.items() if not name.endswith(blind)}


@pytest.mark.parametrize("way", ["", ", sharded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_steps_of_two_processes_are_those_of_one(
    walks: Any, walked: Path, alone: Any, family: str, way: str
) -> None:
    found, expected = walks.Walked.read(walked / "2" / f"{family}{way}"), alone(family)
    assert len(found.losses) == 20
    assert found.losses == pytest.approx(expected.losses, abs=CLOSE_LOSS)
    blind = (*BLIND, *BLIND_TO_PLACES) if family == "answer" else BLIND
    torch.testing.assert_close(seen(found.saved, blind), seen(expected.saved, blind), rtol=0, atol=CLOSE["single"])


@pytest.mark.parametrize("way", ["", ", sharded"])
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train_as_one(walks: Any, walked: Path, alone: Any, name: str, way: str) -> None:
    assert_same(walks, walked / "2" / f"{name}{way}", alone(name))


def test_two_processes_train_as_one_with_muon(walks: Any, walked: Path, alone: Any) -> None:
    assert_same(walks, walked / "2" / "muon", alone("muon"))


def test_a_share_that_is_no_number_skips_the_step_for_all(walks: Any, walked: Path) -> None:
    for way in ("", ", sharded"):
        _, facts = walks.Walked.read(walked / "2" / f"steps skipped{way}").end
        assert 0 < facts["skipped"] < walks.HALF


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", ", sharded"])
def test_three_processes_train_as_one(walks: Any, walked_by_three: Path, alone: Any, way: str) -> None:
    name = "fewer rows than processes"
    assert_same(walks, walked_by_three / f"{name}{way}", alone(name))


@pytest.mark.parametrize("name", RESUMED)
def test_what_two_have_begun_two_go_on_with(walks: Any, walked: Path, alone: Any, name: str) -> None:
    assert_same(walks, walked / "2" / name, alone("in double precision"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_what_two_have_begun_three_go_on_with(walks: Any, walked_by_three: Path, alone: Any, name: str) -> None:
    assert_same(walks, walked_by_three / name, alone("in double precision"))


@pytest.mark.parametrize("begun", ["in double precision", "in double precision, sharded"])
def test_what_two_have_begun_one_goes_on_with(walks: Any, walked: Path, alone: Any, begun: str, tmp_path: Path) -> None:
    walks.walk("resumed", tmp_path / "one", resume=walked / "2" / begun)
    assert_same(walks, tmp_path / "one", alone("in double precision"))
