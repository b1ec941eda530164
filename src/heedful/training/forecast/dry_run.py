"""Dry run: a training step on fake tensors, which counts the memory and FLOPs it would use.

The step is the real one (`train_step`, with the real model, objective and optimizer), so that no formula needs to know
about architectures, precisions or options: PyTorch reports what autograd saves for the backward pass. It works for
models far larger than the machine.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
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
from heedful.models.recurrent_network import Recurrence
from heedful.objectives.objective import Objective, tensors_of
from heedful.training.optim.optimizer import Optimizer
from heedful.training.recipe import TrainingRecipe
from heedful.training.step import ForwardBackward, train_step

MMAP_THRESHOLD = 32 << 20
"""Bytes from which glibc allocates a block outside of its heap (M_MMAP_THRESHOLD at its highest)."""


@dataclass(frozen=True)
class StepCost:
    """Bytes and FLOPs of one step on one batch."""

    weights: int
    optimizer: int
    gradients: int
    """Gradients of all weights after the backward pass."""
    step: int
    """Peak of activations, logits, loss and gradients together."""
    small: int
    """The part of this peak in blocks on the heap of the C library."""
    flops: int


def dry_run_step(
    config: ModelConfig, recipe: TrainingRecipe, objective: Objective, batch: Any, device: torch.device
) -> StepCost:
    """Count the memory and FLOPs of one step on a batch of these shapes."""
    unflattened = patch.object(nn.RNNBase, "flatten_parameters", lambda _: None)  # it would read values
    with FakeTensorMode(), AllocationTracker() as tracker, torch.device(device), unflattened:
        model = build(config)
        weights = tracker.now
        optimizer = Optimizer(model, recipe)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.grad = torch.empty_like(weight)
        gradients = tracker.now - weights
        optimizer.step(0.0, found_inf=torch.zeros(()))
        optimizer.zero_grad()
        state = tracker.now - weights
        replace_recurrence(model, tracker)
        held, held_small = tracker.now, tracker.small
        tracker.peak = tracker.flops = 0
        forward_backward = ForwardBackward(model, _FixedTokenCount(objective), device, getattr(torch, recipe.precision))
        train_step(forward_backward, [_fake_batch(batch, device)], optimizer, step=0, seed=0)
        return StepCost(weights, state, gradients, tracker.peak - held, tracker.peak_small - held_small, tracker.flops)


class AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all live storages, and the FLOPs of matrix products and attention."""

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
            if isinstance(value, Tensor) and not value.is_sparse:  # the parts of a sparse tensor are counted themselves
                self._allocate(value.untyped_storage())
        return result

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.sizes:
            return
        size = self.sizes[key] = storage.nbytes()
        self.now += size
        self.small += size if size < MMAP_THRESHOLD else 0
        if self.now > self.peak:
            self.peak, self.peak_small = self.now, self.small
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        size = self.sizes.pop(key)
        self.now -= size
        self.small -= size if size < MMAP_THRESHOLD else 0


@dataclass(frozen=True)
class _FixedTokenCount:
    """The objective with a constant token count: fake tensors have no values to count."""

    objective: Objective

    def loss(self, model: Any, batch: Any) -> Tensor:
        return self.objective.loss(model, batch)

    def token_count(self, batch: Any) -> int:
        return 1


def _fake_batch(batch: Any, device: torch.device) -> Any:
    empty = {
        name: torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device)
        for name, tensor in tensors_of(batch).items()
    }
    return replace(batch, **empty)


SAVED_STATES = {
    ("cpu", "gru"): (8, 8),
    ("cpu", "lstm"): (17, 24),
    ("cuda", "gru"): (8, 8),
    ("cuda", "lstm"): (8, 8),
}
"""Memory that a recurrent layer saves for its backward pass, in multiples of its hidden states, unidirectional and
bidirectional; measured. CPU: a GRU is unrolled into its gates and h; oneDNN's LSTM saves a workspace per direction."""
BACKWARD_STATES = 5
"""Temporary memory of its backward pass, in the same unit."""


class RecurrenceStub(nn.Module):
    """Replaces a GRU or LSTM, whose fused kernels do not report the memory they save: same shapes, measured memory."""

    def __init__(self, recurrence: Recurrence, tracker: AllocationTracker) -> None:
        super().__init__()
        self.recurrence, self.tracker = recurrence, tracker

    def forward(
        self, x: Tensor, hidden: tuple[Tensor, ...] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        cell = self.recurrence.cell
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        weights = list(cell.parameters())
        kind = "lstm" if isinstance(cell, nn.LSTM) else "gru"
        saved = SAVED_STATES[x.device.type if x.device.type == "cuda" else "cpu", kind][cell.bidirectional]
        self.tracker.flops += 6 * x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights if weight.ndim > 1)
        states: Tensor = SavedStates.apply(x, saved * cell.num_layers, *weights)  # type: ignore[no-untyped-call]
        return states, hidden or self.recurrence.zero_state(len(x), x)

    def last(self, states: Tensor, ends: tuple[Tensor, ...], lengths: Tensor | None) -> Tensor:
        return self.recurrence.last(states, ends, lengths)


class SavedStates(torch.autograd.Function):
    """Saves `saved` tensors of its input's shape for the backward pass, which returns gradients of the right shapes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, saved: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.new_empty(saved, *x.shape), *weights)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, _, *weights = ctx.saved_tensors
        x.new_empty(BACKWARD_STATES, *x.shape)
        return torch.empty_like(x), None, *(torch.empty_like(weight) for weight in weights)


def replace_recurrence(model: nn.Module, tracker: AllocationTracker) -> None:
    """Replace every recurrence of a model by its stub."""
    for name, module in model.named_children():
        if isinstance(module, Recurrence):
            setattr(model, name, RecurrenceStub(module, tracker))
