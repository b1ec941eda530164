"""A training step on tensors that have shapes but no contents: what it would hold and compute, at no cost.

The step is the real one (`train_step`, with the real model, objective and optimizer), so nothing about any family,
precision or option is written down a second time: what autograd keeps for the way back is what PyTorch itself
says it keeps. It works for models far larger than the machine.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.recurrent import Recurrence
from heedful.objectives.objective import Objective
from heedful.training.optim.optimizer import Optimizer
from heedful.training.recipe import TrainingRecipe
from heedful.training.step import ForwardBackward, train_step

LARGE = 32 << 20
"""Bytes from which glibc maps a block of its own (M_MMAP_THRESHOLD at its highest)."""


@dataclass(frozen=True)
class StepCost:
    """Bytes and operations of one step on one batch."""

    weights: int
    optimizer: int
    gradients: int
    """Of all weights: what backward leaves behind."""
    step: int
    """The most that activations, logits, loss and gradients hold together at any one time."""
    small: int
    """Of these, in blocks that a C library keeps on its heap."""
    flops: int


def dry_run_step(
    config: ModelConfig, recipe: TrainingRecipe, objective: Objective, batch: Any, device: torch.device
) -> StepCost:
    """One step on a batch of these shapes."""
    unflattened = patch.object(nn.RNNBase, "flatten_parameters", lambda _: None)  # it would look at contents
    with FakeTensorMode(), AllocationTracker() as ledger, torch.device(device), unflattened:
        model = build(config)
        weights = ledger.now
        optimizer = Optimizer(model, recipe)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.grad = torch.empty_like(weight)
        gradients = ledger.now - weights
        optimizer.step(0.0, found_inf=torch.zeros(()))
        optimizer.zero_grad()
        state = ledger.now - weights
        replace_recurrence(model, ledger)
        held, held_small = ledger.now, ledger.small
        ledger.peak = ledger.flops = 0
        train_step(
            ForwardBackward(model, _Counted(objective), device, getattr(torch, recipe.precision)),
            [_without_contents(batch, device)],
            optimizer,
            lr_factor=1.0,
            max_grad_norm=recipe.clip,
            seed=(0, 0),
        )
        return StepCost(weights, state, gradients, ledger.peak - held, ledger.peak_small - held_small, ledger.flops)


class AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps account of every storage alive, and of the operations of matrix products and attention."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.flops = 0
        self.small = self.peak_small = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and not value.is_sparse:  # whose parts have been entered one by one
                self._enter(value.untyped_storage())
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.sizes:
            return
        size = self.sizes[key] = storage.nbytes()
        self.now += size
        self.small += size if size < LARGE else 0
        if self.now > self.peak:
            self.peak, self.peak_small = self.now, self.small
        weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        size = self.sizes.pop(key)
        self.now -= size
        self.small -= size if size < LARGE else 0


@dataclass(frozen=True)
class _Counted:
    """The objective, with a number of labels that need not be looked up."""

    objective: Objective

    def loss(self, model: Any, batch: Any) -> Tensor:
        return self.objective.loss(model, batch)

    def token_count(self, batch: Any) -> int:
        return 1


def _without_contents(batch: Any, device: torch.device) -> Any:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    empty = {
        name: torch.empty(tuple(value.shape), dtype=value.dtype, device=device)
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    return replace(batch, **empty)


KEPT = {
    ("cpu", "gru"): (8, 8),
    ("cpu", "lstm"): (17, 24),
    ("cuda", "gru"): (8, 8),
    ("cuda", "lstm"): (8, 8),
}
"""What a recurrent layer keeps for the way back, in units of its states, reading one way and both ways; measured.

CPU: a GRU is unrolled into r, z, n, their parts and h; oneDNN's LSTM keeps a workspace, and one for each way."""
WAY_BACK = 5
"""And what the way back holds for a while."""


class RecurrenceStub(nn.Module):
    """In the place of a GRU or LSTM, whose kernels do not say what they hold, and which unrolled would be
    thousands of small operations: takes and gives the same shapes, and keeps as much as they were seen to keep."""

    def __init__(self, recurrence: Recurrence, ledger: AllocationTracker) -> None:
        super().__init__()
        self.recurrence, self.ledger = recurrence, ledger

    def forward(
        self, x: Tensor, hidden: tuple[Tensor, ...] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        cell = self.recurrence.cell
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        weights = list(cell.parameters())
        kind = "lstm" if isinstance(cell, nn.LSTM) else "gru"
        kept = KEPT[x.device.type if x.device.type == "cuda" else "cpu", kind][cell.bidirectional]
        self.ledger.flops += 6 * x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights if weight.ndim > 1)
        states: Tensor = Unrolled.apply(x, kept * cell.num_layers, *weights)  # type: ignore[no-untyped-call]
        return states, hidden or self.recurrence._blank(x)


class Unrolled(torch.autograd.Function):
    """Keeps `kept` values for each of its inputs until the way back, which makes gradients of the right shapes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.new_empty(kept, *x.shape), *weights)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, _, *weights = ctx.saved_tensors
        x.new_empty(WAY_BACK, *x.shape)
        return torch.empty_like(x), None, *(torch.empty_like(weight) for weight in weights)


def replace_recurrence(model: nn.Module, ledger: AllocationTracker) -> None:
    for name, module in model.named_children():
        if isinstance(module, Recurrence):
            setattr(model, name, RecurrenceStub(module, ledger))
