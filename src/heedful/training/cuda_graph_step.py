"""Training steps as CUDA graphs: in small models, launching kernels takes longer than running them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from heedful.cuda_graphs import CudaGraphCapturer
from heedful.objectives.objective import CompiledObjective, LossModule, tensors_of, to_device
from heedful.training.distributed.data_parallel import all_reduce_gradients
from heedful.training.step import ForwardBackward

MAX_GRAPHS = 512
"""Maximum number of batch shapes captured: each graph holds a few megabytes."""
EAGER_CAPTURES = 256
"""Number of shapes captured on their first batch, which takes little longer than running it; later shapes are captured
when they occur again."""


@dataclass
class CudaGraphForwardBackward(ForwardBackward):
    """Forward and backward pass as one CUDA graph per batch shape: a replay is one launch instead of thousands.

    The first batch runs uncaptured, so that libraries initialize and gradients are allocated. Graphs share one memory
    pool, since only one runs at a time. From then on weights and gradients must keep their addresses.
    """

    seen: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    captured: dict[tuple[Any, ...], CapturedStep] = field(default_factory=dict)

    @cached_property
    def pool(self) -> CudaGraphCapturer:
        return CudaGraphCapturer()

    @cached_property
    def loss_module(self) -> nn.Module:
        """Without DDP, whose hooks cannot be captured: gradients are summed after the replay."""
        return LossModule(self.model, self.objective)

    def backward(self, loss: Tensor) -> None:
        """Add to all existing gradients in one fused kernel; `loss.backward()` would launch one per parameter."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if len(gradients) < len(weights):
            super().backward(loss)
        else:
            torch._foreach_add_(gradients, list(torch.autograd.grad(loss, weights)))

    def accumulate(self, batch: Any, tokens: int | Tensor, *, sync: bool = True) -> Tensor:
        loss = self._replay(batch, tokens)
        if sync and self.process_group.size > 1:
            all_reduce_gradients(self.model.parameters())
        return loss

    def _replay(self, batch: Any, tokens: int | Tensor) -> Tensor:
        shape = tuple((name, tensor.shape) for name, tensor in tensors_of(batch).items())
        self.seen[shape] += 1
        if shape not in self.captured:
            if not self._is_due(shape):
                return super().accumulate(batch, tokens)
            self.captured[shape] = CapturedStep(super().accumulate, to_device(batch, self.device), self.pool)
        return self.captured[shape].replay(batch, tokens)

    def _is_due(self, shape: tuple[Any, ...]) -> bool:
        # A compiled objective is compiled for a shape before it is captured.
        eager_captures = 0 if isinstance(self.objective, CompiledObjective) else EAGER_CAPTURES
        graphs = len(self.captured)
        return self.seen.total() > 1 and (graphs < eager_captures or (graphs < MAX_GRAPHS and self.seen[shape] > 1))


class CapturedStep:
    """The graph of one batch shape, with the static input tensors it reads."""

    def __init__(self, accumulate: Callable[[Any, Tensor], Tensor], batch: Any, pool: CudaGraphCapturer) -> None:
        self.batch, self.tokens = batch, torch.ones((), device=pool.stream.device)
        self.step = pool.capture(lambda: accumulate(self.batch, self.tokens), warmup=False)

    def replay(self, batch: Any, tokens: int | Tensor) -> Tensor:
        inputs = tensors_of(batch)
        for name, static in tensors_of(self.batch).items():
            static.copy_(inputs[name].pin_memory(), non_blocking=True)
        self.tokens.fill_(tokens)
        return self.step()
