"""One training step: forward, backward, clip, update."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers.taps import TapEdits
from heedful.objectives.objective import LossModule, Objective, to_device
from heedful.training.distributed.data_parallel import data_parallel, no_sync
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.optim.optimizer import Optimizer
from heedful.training.optim.schedules import learning_rate_factor


@dataclass(frozen=True)
class StepResult:
    """The result of a step, as tensors: reading them would wait for the device."""

    loss: Tensor
    """Loss, summed over labels."""
    tokens: int
    grad_norm: Tensor
    """Norm of the gradient before clipping."""


NO_EDITS = TapEdits()
SEED_STRIDE = 0x9E3779B1
"""Stride between the dropout seeds of two runs: odd, so that all differ, and more than the steps of any run."""


@dataclass
class ForwardBackward:
    """Forward and backward pass of a batch, in the chosen precision."""

    model: nn.Module
    objective: Objective
    device: torch.device
    precision: torch.dtype
    process_group: ProcessGroup = SINGLE_PROCESS
    edits: TapEdits = NO_EDITS
    """Interventions that every step trains with."""

    @cached_property
    def loss_module(self) -> nn.Module:
        """Built at the first step: by then the optimizer has frozen the parameters that do not learn."""
        module = LossModule(self.model, self.objective)
        return data_parallel(module) if self.process_group.size > 1 else module

    def accumulate(self, batch: Any, tokens: int | Tensor, *, sync: bool = True) -> Tensor:
        """Add the gradient of the batch's summed loss divided by `tokens`; return the summed loss.

        `sync` sums the gradients of all ranks: wanted for the last batch of a step only.
        """
        with nullcontext() if sync else no_sync(self.loss_module):
            autocast = torch.autocast(self.device.type, dtype=self.precision, enabled=self.precision != torch.float32)
            with autocast, self.edits.applied(self.model):
                loss: Tensor = self.loss_module(to_device(batch, self.device))
            self.backward(loss / tokens)
        return loss.detach()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to `.grad` of every parameter."""
        loss.backward()  # type: ignore[no-untyped-call]


def dropout_seed(seed: int, step: int) -> int:
    """A seed whose low 32 bits, all that torch's CPU generator uses, depend on the seed of the run and on the step."""
    return seed * SEED_STRIDE + step


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the CPU and this device only: torch.manual_seed checks every device type, which is slow at each step."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def train_step(
    forward_backward: ForwardBackward, batches: Sequence[Any], optimizer: Optimizer, *, step: int, seed: int
) -> StepResult:
    """Accumulate the gradients of `batches`, divided by the labels of *all* of them, clip and update (T1, T2).

    Each rank processes its share of the batches. Dropout is seeded by (seed, step), so that a resumed run drops the
    same values. If the loss or gradient norm is not finite, the optimizer skips the update; this is decided on the
    device, so that the host need not wait.
    """
    model, process_group, recipe = forward_backward.model, forward_backward.process_group, optimizer.recipe
    if not model.training:
        model.train()
    seed_dropout(process_group.rank_seed(dropout_seed(seed, step)), forward_backward.device)
    tokens = sum(forward_backward.objective.token_count(batch) for batch in batches)
    divisor = max(1, tokens)
    loss = torch.zeros((), device=forward_backward.device)
    *accumulated, last = process_group.local_batches(batches)
    for batch in accumulated:
        loss += forward_backward.accumulate(batch, divisor, sync=False)
    loss += forward_backward.accumulate(last, divisor)
    process_group.all_reduce(loss)
    grad_norm = optimizer.gradient_norm()
    finite = torch.isfinite(loss) & torch.isfinite(grad_norm)
    grad_scale = (grad_norm.float() / recipe.clip).clamp(min=1.0) if recipe.clip else None
    lr_factor = learning_rate_factor(recipe.schedule, step, steps=recipe.steps, warmup=recipe.warmup)
    optimizer.step(lr_factor, found_inf=1 - finite.float(), grad_scale=grad_scale)
    optimizer.zero_grad()
    return StepResult(loss, tokens, grad_norm)
