"""Steps recorded once and replayed: on a GPU, a small model's step is mostly waiting for kernels to be launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from heedful.cuda_graphs import CudaGraphPool
from heedful.objectives.objective import CompiledObjective, Objective, to_device
from heedful.training.distributed.data_parallel import LossModule
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.step import ForwardBackward

MAX_GRAPHS = 512
"""Shapes recorded, at most: each recording holds a few megabytes."""
EAGER_CAPTURES = 256
"""Of these, recorded when they come for the first time, which takes little longer than just going through the batch;
the others when they come again."""


class CudaGraphForwardBackward(ForwardBackward):
    """The same as CUDA graphs, one for each shape of batch: a replay is one launch instead of thousands.

    The first batch is not recorded: libraries set themselves up, and gradients get their places. Recordings share their
    memory, since only one runs at a time. Weights and gradients must stay where they are from then on.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        device: torch.device,
        precision: torch.dtype,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        super().__init__(model, objective, device, precision, process_group)
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.captured: dict[tuple[Any, ...], CapturedStep] = {}
        self.graphs: CudaGraphPool | None = None
        self.eager_captures = 0 if isinstance(objective, CompiledObjective) else EAGER_CAPTURES  # it is compiled before

    @cached_property
    def loss_module(self) -> nn.Module:
        """Without DDP, whose hooks cannot be captured: gradients are summed after the replay."""
        return LossModule(self.model, self.objective)

    def backward(self, loss: Tensor) -> None:
        """To all weights at once, where they have gradients already: backward would add to each by itself."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if len(gradients) < len(weights):
            super().backward(loss)
        else:
            torch._foreach_add_(gradients, list(torch.autograd.grad(loss, weights)))

    def accumulate(self, batch: Any, tokens: int | Tensor, *, sync: bool = True) -> Tensor:
        loss = self._replay(batch, tokens)
        if sync:
            self.process_group.all_reduce_gradients(self.model)
        return loss

    def _replay(self, batch: Any, tokens: int | Tensor) -> Tensor:
        shape = tuple(None if tensor is None else tensor.shape for tensor in tensors_of(batch).values())
        self.seen[shape] += 1
        if shape not in self.captured:
            if not self._is_due(shape):
                return super().accumulate(batch, tokens)
            if self.graphs is None:
                self.graphs = CudaGraphPool()
            self.captured[shape] = CapturedStep(super().accumulate, to_device(batch, self.device), self.graphs)
        return self.captured[shape].replay(batch, tokens)

    def _is_due(self, shape: tuple[Any, ...]) -> bool:
        number = len(self.captured)
        return self.seen.total() > 1 and (number < self.eager_captures or (number < MAX_GRAPHS and self.seen[shape] > 1))


class CapturedStep:
    """One shape's way forward and back, with the places its numbers are read from and written to."""

    def __init__(self, add: Callable[[Any, Tensor], Tensor], batch: Any, graphs: CudaGraphPool) -> None:
        self.batch, self.tokens = batch, torch.ones((), device=graphs.stream.device)
        self.step = graphs.capture(lambda: add(self.batch, self.tokens), warmup=False)

    def replay(self, batch: Any, tokens: int | Tensor) -> Tensor:
        given = tensors_of(batch)
        for name, place in tensors_of(self.batch).items():
            if place is not None:
                place.copy_(given[name].pin_memory(), non_blocking=True)
        self.tokens.fill_(tokens)
        return self.step()


def tensors_of(batch: Any) -> dict[str, Any]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if value is None or isinstance(value, Tensor)}
