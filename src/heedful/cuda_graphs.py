"""CUDA graphs: capture a step once and replay it in one launch, where launching small kernels would dominate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class CudaGraphCapturer:
    """Captures CUDA graphs that share one memory pool and one stream, because only one of them runs at a time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, step: Callable[[], Result], *, warmup: bool = True) -> Callable[[], Result]:
        """A function that replays the step; its result is overwritten by the next replay of any graph of the pool.

        `warmup`: run the step once before the capture, so that libraries initialize themselves.
        """
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if warmup:
                step()
            # "relaxed": other threads may use the device meanwhile, and kernels may be loaded on first use.
            graph.capture_begin(pool=self.pool, capture_error_mode="relaxed")
            result = step()
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)

        def replay() -> Result:
            graph.replay()
            return result

        return replay
