"""What can be learned: a loss and the number of labels it is summed over. An objective is one file."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Objective(Protocol):
    """A task's loss. It knows its batches and asks the model for states; it knows nothing of steps or devices."""

    def loss(self, model: Any, batch: Any) -> Tensor:
        """Summed over the batch's labels."""

    def token_count(self, batch: Any) -> int:
        """How many labels that is."""


class CompiledObjective:
    """An objective whose loss, model and all, is compiled as one."""

    def __init__(self, objective: Objective) -> None:
        self.compiled, self.token_count = torch.compile(objective.loss), objective.token_count

    def loss(self, model: Any, batch: Any) -> Tensor:
        from torch._functorch import config

        # Norms are worked out again on the way back. To keep them would save GPT-2 less than 1% of a step's time, and
        # take a tenth more memory.
        with config.patch(ban_recompute_materialized_backward=False):
            return self.compiled(model, batch)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch whose tensors are on the device. A GPU fetches them by itself, from memory that stays where it is."""

    def moved(value: Tensor) -> Tensor:
        apart = device.type == "cuda" and not value.is_cuda
        return (value.pin_memory() if apart else value).to(device, non_blocking=True)

    tensors = ((field.name, getattr(batch, field.name)) for field in fields(batch))
    return replace(batch, **{name: moved(value) for name, value in tensors if isinstance(value, Tensor)})
