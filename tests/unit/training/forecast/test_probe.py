"""heedful.probe: time and memory of a model's passes against the length of the text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import heedful
from heedful import UsageError

SMALL = {"vocabulary": 30, "width": 16, "heads": 2, "layers": 1, "dropout": 0.1}


def memory_exponent(**settings: Any) -> float:
    config = heedful.preset("laptop-writer", **{**SMALL, **settings})
    return heedful.probe(config, [128, 256, 512], repeats=1, device="cpu").exponent("forward_bytes")


def test_memory_is_linear_with_the_fused_kernel_and_quadratic_where_scores_are_stored() -> None:
    assert memory_exponent() == pytest.approx(1.0, abs=0.15)
    assert memory_exponent(score="additive") == pytest.approx(2.0, abs=0.2)
    assert memory_exponent(score="uniform") > 1.5


@pytest.mark.parametrize("name", ["laptop-translator", "laptop-writer", "laptop-reader", "recurrent-translator"])
def test_every_family_is_measured_without_changing_the_model(name: str) -> None:
    size = {"vocabulary": 30, "width": 16} | ({} if name.startswith("rec") else {"heads": 2, "layers": 1})
    model = heedful.build(name, **size).eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    result = heedful.probe(model, [8, 4], batch=3, repeats=1)
    assert [cost.length for cost in result.costs] == [4, 8]
    assert all(cost.forward_seconds > 0 and cost.backward_bytes > cost.forward_bytes > 0 for cost in result.costs)
    assert result.parameters == heedful.count_parameters(model).total
    assert not model.training
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert json.loads(json.dumps(result.to_json()))["batch"] == 3
    assert str(result).count("\n") == 3


def test_lengths_that_cannot_be_measured_are_refused(make_model: Callable[..., Any]) -> None:
    model = make_model("laptop-writer", positions="learned", max_length=16)
    with pytest.raises(UsageError, match="a text of 32 tokens is longer than the learned position table of 16"):
        heedful.probe(model, [8, 32], repeats=1)
    with pytest.raises(UsageError, match="must be positive, got 0"):
        heedful.probe(model, [0])
    with pytest.raises(UsageError, match="an exponent needs two lengths and one of forward_seconds"):
        heedful.probe(model, [8], repeats=1).exponent("forward_seconds")
