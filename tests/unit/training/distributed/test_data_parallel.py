"""DDP sums gradients over ranks, overlaps them with the backward pass, and keeps them local while accumulating."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from heedful.training.distributed import data_parallel as module
from heedful.training.distributed.data_parallel import LossModule, all_reduce_gradients, data_parallel, no_sync


class Layers(nn.Module):
    """Six layers of 20 parameters each; the backward pass logs when it reaches the lower two."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.log = log

    def states(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x).tanh()
            if index == 1:
                x.register_hook(lambda _: self.log.append("lower layers"))
        return x


class SumOfStates:
    """An objective that calls another method than `forward`."""

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        loss: Tensor = model.states(batch).sum()
        return loss

    def token_count(self, batch: Tensor) -> int:
        return len(batch)


class FinishedWork:
    """An all-reduce with another rank that has the same gradients: the sum is twice the local gradient."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.mul_(2)

    def wait(self) -> None: ...

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([self.tensor])
        return future


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """A group of one process whose all-reduces are logged and double the gradients."""
    events: list[Any] = []

    def all_reduce(tensor: Tensor, async_op: bool = False) -> FinishedWork:
        events.append(tensor.numel())
        return FinishedWork(tensor)

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    monkeypatch.setattr(module, "BUCKET_MEGABYTES", 80 / 2**20)
    monkeypatch.setattr(module.dist, "all_reduce", all_reduce)
    yield events
    dist.destroy_process_group()


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("frozen", [(), (2, 3)])
@pytest.mark.parametrize("batches", [1, 3])
def test_gradients_are_summed_over_ranks_and_accumulated_batches(
    log: list[Any], frozen: tuple[int, ...], batches: int
) -> None:
    inputs = torch.randn(batches, 3, 4)
    single, model = Layers([]), Layers([])
    for layers in (single, model):
        for index in frozen:
            layers.layers[index].requires_grad_(False)
    parallel = data_parallel(LossModule(model, SumOfStates()))
    for _ in range(2):  # DDP rearranges its buckets after the first step
        for x in inputs:
            single.states(x).sum().backward()
        with no_sync(parallel):
            for x in inputs[:-1]:
                parallel(x).backward()
        parallel(inputs[-1]).backward()
        for summed, expected in zip(gradients(model), gradients(single), strict=True):
            assert (summed is None) == (expected is None)
            if summed is not None and expected is not None:
                torch.testing.assert_close(summed, 2 * expected)
        single.zero_grad()
        model.zero_grad()


def test_upper_layers_are_sent_while_the_backward_pass_computes_lower_ones(log: list[Any]) -> None:
    model = Layers(log)
    parallel = data_parallel(LossModule(model, SumOfStates()))
    parallel(torch.randn(3, 4)).backward()  # DDP arranges its buckets by the order of gradients in the first step
    log.clear()
    parallel(torch.randn(3, 4)).backward()
    assert sum(number for number in log if number != "lower layers") == 120
    assert log.index("lower layers") >= 3
    assert log[-1] != "lower layers"


def test_nothing_is_sent_while_accumulating(log: list[Any]) -> None:
    parallel = data_parallel(LossModule(Layers([]), SumOfStates()))
    with no_sync(parallel):
        parallel(torch.randn(3, 4)).backward()
    assert log == []


def test_state_dict_keys_stay_those_of_the_model(log: list[Any]) -> None:
    model = Layers([])
    keys = list(model.state_dict())
    parallel = data_parallel(LossModule(model, SumOfStates()))
    assert isinstance(parallel, DistributedDataParallel)
    assert list(model.state_dict()) == keys


def test_no_sync_of_a_single_process_changes_nothing() -> None:
    model = Layers([])
    loss = LossModule(model, SumOfStates())
    with no_sync(loss):
        loss(torch.randn(3, 4)).backward()
    assert all(gradient is not None for gradient in gradients(model))


def test_gradients_of_a_cuda_graph_are_summed_after_the_replay(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = Layers([])
        model.layers[5].requires_grad_(False)
        model.states(torch.randn(3, 4)).sum().backward()
        before = [None if gradient is None else gradient.clone() for gradient in gradients(model)]
        all_reduce_gradients(model.parameters())
        for gradient, expected in zip(gradients(model), before, strict=True):
            assert (gradient is None) == (expected is None)
            assert gradient is None or torch.equal(gradient, expected)
    finally:
        dist.destroy_process_group()
