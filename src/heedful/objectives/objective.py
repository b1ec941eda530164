"""The objective protocol: a loss and the number of labels it is summed over. One file per objective."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Objective(Protocol):
    """A task's loss as a function of model and batch, independent of training steps and devices."""

    def loss(self, model: Any, batch: Any) -> Tensor:
        """The loss, summed over the batch's labels."""

    def token_count(self, batch: Any) -> int:
        """Number of labels the loss is summed over."""


class CompiledObjective:
    """An objective whose loss and model are compiled together by torch.compile."""

    def __init__(self, objective: Objective) -> None:
        self.compiled, self.token_count = torch.compile(objective.loss), objective.token_count

    def loss(self, model: Any, batch: Any) -> Tensor:
        from torch._functorch import config

        # Norms are recomputed in the backward pass: keeping them would save GPT-2 less than 1% of a step's time, and
        # take a tenth more memory.
        with config.patch(ban_recompute_materialized_backward=False):
            return self.compiled(model, batch)


def tensors_of(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch, by field; optional fields may be empty."""
    values = ((field.name, getattr(batch, field.name)) for field in fields(batch))
    return {name: value for name, value in values if isinstance(value, Tensor)}


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device; to a GPU, an asynchronous copy from pinned memory."""

    def move(tensor: Tensor) -> Tensor:
        pin = device.type == "cuda" and not tensor.is_cuda
        return (tensor.pin_memory() if pin else tensor).to(device, non_blocking=True)

    return replace(batch, **{name: move(tensor) for name, tensor in tensors_of(batch).items()})


class LossModule(nn.Module):
    """A model and its objective as one module whose forward pass returns the loss of a batch.

    DDP follows `forward`, while objectives call other methods of a model (`states`, `teacher_forced_states`).
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> Tensor:
        return self.objective.loss(self.model, batch)
