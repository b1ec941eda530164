"""One step of learning, whole and on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.objectives.objective import Objective, to_device
from heedful.training.optimizers import Optimizer, clip


@dataclass(frozen=True)
class StepResult:
    """Tensors, so that nothing waits for the device until somebody reads them."""

    loss: Tensor
    """Summed over labels."""
    tokens: int
    gradient: Tensor
    """The gradient's length before clipping."""


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
) -> StepResult:
    """Gradients of all `batches` added up, divided by *all* their labels, clipped, applied (T1, T2).

    Dropout is drawn from (seed, step), so that a resumed run drops the same values. A loss or gradient that
    is not finite changes nothing: that is decided on the device, so that the host need not wait.
    """
    model.train()
    torch.manual_seed((seed[0] << 32) + seed[1])
    tokens = sum(objective.tokens(batch) for batch in batches)
    total = torch.zeros((), device=device)
    for batch in batches:
        with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
            loss = objective.loss(model, to_device(batch, device))
        (loss / max(1, tokens)).backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    gradient = clip(model, clip_at)
    finite = torch.isfinite(total) & torch.isfinite(gradient)
    optimizer.step(factor, skip=1 - finite.float())
    optimizer.zero()
    return StepResult(total, tokens, gradient)
