"""Steps recorded once and replayed: on a GPU, a small model's step is mostly waiting for kernels to be launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from heedful.objectives.objective import Objective, to_device
from heedful.training.step import Gradients

MOST = 512
"""Shapes recorded, at most: each recording holds a few megabytes."""


class Recorder(Gradients):
    """The same as CUDA graphs, one for each shape of batch: a replay is one launch instead of thousands.

    A shape is recorded when it comes for the second time; the first time warms it up. Recordings share their memory,
    since only one runs at a time. Weights and gradients must stay where they are from then on.
    """

    def __init__(self, model: nn.Module, objective: Objective, device: torch.device, precision: torch.dtype) -> None:
        super().__init__(model, objective, device, precision)
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.recordings: dict[tuple[Any, ...], Recording] = {}
        self.room: tuple[Any, torch.cuda.Stream] | None = None
        """Memory, and the stream it belongs to: recordings made on one stream can share what they free."""

    def add(self, batch: Any, tokens: int | Tensor) -> Tensor:
        shape = tuple(None if tensor is None else tensor.shape for tensor in tensors_of(batch).values())
        self.seen[shape] += 1
        if shape not in self.recordings:
            if self.seen[shape] == 1 or len(self.recordings) == MOST:
                return super().add(batch, tokens)
            if self.room is None:
                self.room = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.recordings[shape] = Recording(super().add, to_device(batch, self.device), *self.room)
        return self.recordings[shape].replay(batch, tokens)


class Recording:
    """One shape's way forward and back, with the places its numbers are read from and written to."""

    def __init__(self, add: Callable[[Any, Tensor], Tensor], batch: Any, pool: Any, aside: torch.cuda.Stream) -> None:
        self.batch, self.tokens = batch, torch.ones((), device=aside.device)
        self.graph = torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Other threads may go on using the device: only this one must not do what cannot be recorded.
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            self.loss = add(self.batch, self.tokens)
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)

    def replay(self, batch: Any, tokens: int | Tensor) -> Tensor:
        given = tensors_of(batch)
        for name, place in tensors_of(self.batch).items():
            if place is not None:
                place.copy_(given[name].pin_memory(), non_blocking=True)
        self.tokens.fill_(tokens)
        self.graph.replay()
        return self.loss


def tensors_of(batch: Any) -> dict[str, Any]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if value is None or isinstance(value, Tensor)}
