"""Texts that move into a room are written as they would have been; on a GPU, by replaying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.generation.backends.cuda_graph import CudaGraphDecoder, padded_length
from heedful.generation.continuation import generate_ids
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.sequence_to_sequence import translate_ids

Make = Callable[..., Any]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
WAYS: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 4, "n_best": 3},
    {"beam": 5, "prefixes": True},
    {"draw": SamplingConfig(seed=3), "n_best": 2},
]


def _texts(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(6, 11, (length,), generator=generator).tolist() for length in lengths]


def _words(found: list[list[Any]]) -> list[list[list[int]]]:
    return [[text.tokens for text in texts] for texts in found]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way))
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "alibi", "learned"])
def test_a_recorded_translator_writes_what_the_model_writes(
    device: str, way: dict[str, Any], positions: str, make_model: Make
) -> None:
    model = make_model("paper-base", positions=positions, head_width=16, key_value_heads=1).to(device)
    sources = _texts([3, 9, 1, 30, 4, 17, 12])
    prefixes = [[7] * (number % 3) for number in range(len(sources))] if way.get("prefixes") else None
    options = {**way, "prefixes": prefixes}
    recorded, expected = CudaGraphDecoder(model), _words(translate_ids(model, sources, **options))
    for _ in range(2):  # the second time nothing is recorded any more
        assert _words(translate_ids(recorded, sources, **options)) == expected
    assert sum(len(room.steps) for room in recorded.rooms.values()) > 1  # rows left, and the steps got smaller


@pytest.mark.parametrize("device", DEVICES)
def test_heads_of_any_width_are_recorded(device: str, make_model: Make) -> None:
    model, sources = make_model("paper-base", head_width=6, value_width=10).to(device), _texts([3, 9, 1])
    assert _words(translate_ids(CudaGraphDecoder(model), sources)) == _words(translate_ids(model, sources))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "way", [{"beam": 1}, {"beam": 3}, {"draw": SamplingConfig(seed=3), "n_best": 2}], ids=lambda way: "-".join(way)
)
def test_a_recorded_language_model_writes_on_past_its_window_as_the_model_does(
    device: str, way: dict[str, Any], make_model: Make
) -> None:
    model = make_model("gpt2", max_length=20).to(device)
    prompts, rules = _texts([5, 5, 2, 12]), LogitsRules(min_length=45)
    recorded = CudaGraphDecoder(model)
    found = generate_ids(recorded, prompts, limit=50, rules=rules, **way)
    assert _words(found) == _words(generate_ids(model, prompts, limit=50, rules=rules, **way))
    assert recorded.rooms


def test_places_come_in_few_sizes_and_little_is_unused() -> None:
    sizes = [padded_length(number) for number in range(1, 4097)]
    assert all(size >= number for number, size in enumerate(sizes, 1))
    assert all(size <= 1.25 * number for number, size in enumerate(sizes, 1) if number >= 256)
    assert len(set(sizes)) < 25


def test_everything_a_model_is_asked_for_goes_through_recorded_steps(
    make_trained: Make, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("laptop-translator", "laptop-writer"):
        plain, trained = make_trained(name), make_trained(name)
        recorded = CudaGraphDecoder(trained.model)
        monkeypatch.setattr(trained.engines, "own", lambda decoding, recorded=recorded: recorded)
        if name == "laptop-translator":
            asked = [*texts[:4], "<b>3</b> May {year}"]
            assert trained.translate(asked, engine="torch") == plain.translate(asked, engine="torch")
            aligned = [list(each.translations(asked, engine="torch", alignments=True)) for each in (trained, plain)]
            assert [answer.alignment for answer in aligned[0]] == [answer.alignment for answer in aligned[1]]
        else:
            long: dict[str, Any] = {"min_length": 9, "max_length": 9}
            assert trained.generate("3 May", seed=2, **long) == plain.generate("3 May", seed=2, **long)
            assert list(trained.stream("3 May", **long)) == list(plain.stream("3 May", **long))
        assert recorded.rooms


def test_of_many_sizes_the_last_few_are_kept(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.generation.backends.cuda_graph.MOST", 2)
    recorded = CudaGraphDecoder(make_model("paper-base"))
    for rows in (1, 2, 4, 8, 1):
        translate_ids(recorded, _texts([5] * rows), beam=2, at_most=3)
    assert [size.sources for size in recorded.rooms] == [8, 1]
    assert len(recorded.sources) == 2
