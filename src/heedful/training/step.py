"""One step of learning, whole and on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.objectives.objective import Objective, to_device
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.optim.optimizer import Optimizer


@dataclass(frozen=True)
class StepResult:
    """Tensors, so that nothing waits for the device until somebody reads them."""

    loss: Tensor
    """Summed over labels."""
    tokens: int
    grad_norm: Tensor
    """The gradient's length before clipping."""


@dataclass
class ForwardBackward:
    """A model, what it learns, and where: forward and back over a batch."""

    model: nn.Module
    objective: Objective
    device: torch.device
    precision: torch.dtype
    overlaps_all_reduce = True
    """Whether each weight gets its gradient by itself, on the way back."""

    def accumulate(self, batch: Any, tokens: int | Tensor) -> Tensor:
        """Add the gradient of the batch's share of the loss over `tokens` labels. Gives its summed loss."""
        with torch.autocast(self.device.type, dtype=self.precision, enabled=self.precision != torch.float32):
            loss = self.objective.loss(self.model, to_device(batch, self.device))
        self.backward(loss / tokens)
        return loss.detach()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this to every weight's."""
        loss.backward()  # type: ignore[no-untyped-call]


def seed_dropout(seed: int, device: torch.device) -> None:
    """Of this device alone: torch.manual_seed looks for every kind of device there might be, at every step."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def train_step(
    forward_backward: ForwardBackward,
    batches: Sequence[Any],
    optimizer: Optimizer,
    *,
    lr_factor: float,
    max_grad_norm: float,
    seed: tuple[int, int],
    world: ProcessGroup = SINGLE_PROCESS,
) -> StepResult:
    """Gradients of all `batches` added up, divided by *all* their labels, clipped, applied (T1, T2).

    Each process of the world goes through its share of them. Dropout is drawn from (seed, step), so that a
    resumed run drops the same values. A loss or gradient that is not finite changes nothing: that is decided on
    the device, so that the host need not wait.
    """
    model = forward_backward.model
    if not model.training:
        model.train()
    seed_dropout(world.rank_seed((seed[0] << 32) + seed[1]), forward_backward.device)
    tokens = sum(forward_backward.objective.token_count(batch) for batch in batches)
    total = torch.zeros((), device=forward_backward.device)
    *before, last = world.local_batches(batches)
    for batch in before:
        total += forward_backward.accumulate(batch, max(1, tokens))
    with world.summing(model, early=forward_backward.overlaps_all_reduce):
        total += forward_backward.accumulate(last, max(1, tokens))
    world.all_reduce(total)
    length = optimizer.gradient_norm()
    finite = torch.isfinite(total) & torch.isfinite(length)
    shrink = (length.float() / max_grad_norm).clamp(min=1.0) if max_grad_norm else None
    optimizer.step(lr_factor, found_inf=1 - finite.float(), grad_scale=shrink)
    optimizer.zero_grad()
    return StepResult(total, tokens, length)
