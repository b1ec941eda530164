"""One step of learning, whole and on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heedful.objectives.objective import Objective, to_device
from heedful.training.optimizers import Optimizer, clip
from heedful.training.world import ALONE, World


@dataclass(frozen=True)
class StepResult:
    """Tensors, so that nothing waits for the device until somebody reads them."""

    loss: Tensor
    """Summed over labels."""
    tokens: int
    gradient: Tensor
    """The gradient's length before clipping."""


def add_gradients(
    model: nn.Module,
    objective: Objective,
    batch: Any,
    tokens: int | Tensor,
    device: torch.device,
    precision: torch.dtype,
) -> Tensor:
    """Forward and back: the gradient of the batch's share of the loss over `tokens` labels. Gives its summed loss."""
    with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
        loss = objective.loss(model, to_device(batch, device))
    (loss / tokens).backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def seed_dropout(seed: int, device: torch.device) -> None:
    """Of this device alone: torch.manual_seed looks for every kind of device there might be, at every step."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


@runtime_checkable
class AddGradients(Protocol):
    """`add_gradients`, or something that does the same in another way."""

    def __call__(
        self,
        model: nn.Module,
        objective: Objective,
        batch: Any,
        tokens: int | Tensor,
        device: torch.device,
        precision: torch.dtype,
    ) -> Tensor: ...


def train_step(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[Any],
    optimizer: Optimizer,
    *,
    factor: float,
    clip_at: float,
    device: torch.device,
    precision: torch.dtype,
    seed: tuple[int, int],
    add: AddGradients = add_gradients,
    world: World = ALONE,
) -> StepResult:
    """Gradients of all `batches` added up, divided by *all* their labels, clipped, applied (T1, T2).

    Each process of the world goes through its share of them. Dropout is drawn from (seed, step), so that a
    resumed run drops the same values. A loss or gradient that is not finite changes nothing: that is decided on
    the device, so that the host need not wait.
    """
    if not model.training:
        model.train()
    seed_dropout(world.seed((seed[0] << 32) + seed[1]), device)
    tokens = sum(objective.tokens(batch) for batch in batches)
    total = torch.zeros((), device=device)
    for batch in world.share(batches):
        total += add(model, objective, batch, max(1, tokens), device, precision)
    world.sum_gradients(model)
    world.add_up(total)
    gradient = clip(model, clip_at)
    finite = torch.isfinite(total) & torch.isfinite(gradient)
    optimizer.step(factor, skip=1 - finite.float())
    optimizer.zero()
    return StepResult(total, tokens, gradient)
