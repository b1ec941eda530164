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

    def tokens(self, batch: Any) -> int:
        """How many labels that is."""


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch whose tensors are on the device; copying does not wait where memory is pinned."""
    moved = {
        field.name: value.to(device, non_blocking=True)
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    return replace(batch, **moved)
