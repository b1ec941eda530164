"""One step of learning, whole and on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.objectives.objective import Objective, to_device
from heedful.training.distributed.process_group import ALONE, World
from heedful.training.optim.optimizer import Optimizer


@dataclass(frozen=True)
class StepResult:
    """Tensors, so that nothing waits for the device until somebody reads them."""

    loss: Tensor
    """Summed over labels."""
    tokens: int
    gradient: Tensor
    """The gradient's length before clipping."""


@dataclass
class Gradients:
    """A model, what it learns, and where: forward and back over a batch."""

    model: nn.Module
    objective: Objective
    device: torch.device
    precision: torch.dtype
    one_by_one = True
    """Whether each weight gets its gradient by itself, on the way back."""

    def add(self, batch: Any, tokens: int | Tensor) -> Tensor:
        """Add the gradient of the batch's share of the loss over `tokens` labels. Gives its summed loss."""
        with torch.autocast(self.device.type, dtype=self.precision, enabled=self.precision != torch.float32):
            loss = self.objective.loss(self.model, to_device(batch, self.device))
        self.spread(loss / tokens)
        return loss.detach()

    def spread(self, loss: Tensor) -> None:
        """Add the gradient of this to every weight's."""
        loss.backward()  # type: ignore[no-untyped-call]


def seed_dropout(seed: int, device: torch.device) -> None:
    """Of this device alone: torch.manual_seed looks for every kind of device there might be, at every step."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def train_step(
    gradients: Gradients,
    batches: Sequence[Any],
    optimizer: Optimizer,
    *,
    factor: float,
    clip_at: float,
    seed: tuple[int, int],
    world: World = ALONE,
) -> StepResult:
    """Gradients of all `batches` added up, divided by *all* their labels, clipped, applied (T1, T2).

    Each process of the world goes through its share of them. Dropout is drawn from (seed, step), so that a
    resumed run drops the same values. A loss or gradient that is not finite changes nothing: that is decided on
    the device, so that the host need not wait.
    """
    model = gradients.model
    if not model.training:
        model.train()
    seed_dropout(world.seed((seed[0] << 32) + seed[1]), gradients.device)
    tokens = sum(gradients.objective.tokens(batch) for batch in batches)
    total = torch.zeros((), device=gradients.device)
    *before, last = world.share(batches)
    for batch in before:
        total += gradients.add(batch, max(1, tokens))
    with world.summing(model, early=gradients.one_by_one):
        total += gradients.add(last, max(1, tokens))
    world.add_up(total)
    length = optimizer.length()
    finite = torch.isfinite(total) & torch.isfinite(length)
    shrink = (length.float() / clip_at).clamp(min=1.0) if clip_at else None
    optimizer.step(factor, skip=1 - finite.float(), shrink=shrink)
    optimizer.zero()
    return StepResult(total, tokens, length)
