"""Gradients are summed over processes, in one order, and as early as they can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.training.distributed import gradient_all_reduce as module
from heedful.training.distributed.gradient_all_reduce import Summing, buckets


class Wires:
    """Another process that has the same gradients: a sum is twice of each. What happens is noted."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.under_way = self.most = 0

    def all_reduce(self, flat: Tensor, async_op: bool) -> Any:
        self.noted.append(flat.numel())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        wires = self

        class Work:
            def wait(self) -> None:
                wires.under_way -= 1
                flat.mul_(2)

        return Work()


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    made = Wires()
    monkeypatch.setattr(module, "BUCKET", 20)
    monkeypatch.setattr(module.dist, "all_reduce", made.all_reduce)
    return made


class Layers(nn.Module):
    """Layers of 20 numbers each; the lowest says when the way back has come to it. The last shares its table."""

    def __init__(self, noted: list[Any], unused: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.noted, self.unused = noted, unused

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            if place != self.unused:
                x = layer(x).tanh()
            if place == 1 and self.training:
                x.register_hook(lambda _: self.noted.append("below"))
        return (x @ self.layers[0].weight.t()).sum()


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("frozen", [(), (2, 3)])
@pytest.mark.parametrize("unused", [-1, 5, 2])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("batches", [1, 3])
def test_the_sum_is_that_of_all_gradients(
    wires: Wires, frozen: tuple[int, ...], unused: int, early: bool, batches: int
) -> None:
    inputs = torch.randn(batches, 3, 4)
    plain, model = Layers([], unused), Layers([], unused)
    for each in (plain, model):
        for place in frozen:
            each.layers[place].requires_grad_(False)
    summing = Summing(model)
    for _ in range(2):  # a step, and another
        for x in inputs:
            plain(x).backward()
        for x in inputs[:-1]:
            model(x).backward()
        with summing.over(early=early):
            model(inputs[-1]).backward()
        for found, expected in zip(gradients(model), gradients(plain), strict=True):
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert torch.equal(found, 2 * expected)
        for each in (plain, model):
            each.zero_grad()


def test_the_upper_layers_are_on_their_way_before_the_lower_have_gradients(wires: Wires) -> None:
    model = Layers(wires.noted)
    with Summing(model).over(early=True):
        model(torch.randn(3, 4)).backward()
    assert wires.noted == [20, 20, 20, 20, "below", 20, 20]
    assert wires.most <= module.IN_FLIGHT


def test_one_after_the_other_where_all_gradients_come_at_once(wires: Wires) -> None:
    model = Layers(wires.noted)
    with Summing(model).over(early=False):
        model(torch.randn(3, 4)).backward()
    assert wires.noted == ["below", *[20] * 6]


def test_one_without_a_gradient_holds_back_what_comes_after_it_so_that_all_send_in_one_order(wires: Wires) -> None:
    model = Layers(wires.noted, unused=4)
    with Summing(model).over(early=True):
        model(torch.randn(3, 4)).backward()
    assert wires.noted == [20, "below", *[20] * 4]


def test_buckets_are_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET", 10)
    sizes: list[Any] = [(4, "float32"), (6, "float32"), (1, "float32"), (1, "float64"), (30, "float64"), (2, "float64")]
    tensors = [torch.zeros(size, dtype=getattr(torch, kind)) for size, kind in sizes]
    assert [[len(tensor) for tensor in bucket] for bucket in buckets(tensors)] == [[4, 6], [1], [1], [30], [2]]
