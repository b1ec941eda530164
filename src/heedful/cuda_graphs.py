"""Work recorded once and replayed as one launch: on a GPU, small kernels are mostly waited for (CUDA graphs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class CudaGraphPool:
    """Makes CUDA graphs that share their memory, since only one runs at a time; so they are made on one stream."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, step: Callable[[], Result], *, warmup: bool = True) -> Callable[[], Result]:
        """The step as one launch. What it gives back holds until the next one runs.

        It is first taken once, for libraries to set themselves up, unless it has been (`warm=False`).
        """
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if warmup:
                step()
            # Nothing is forbidden: other threads may go on using the device, and kernels be loaded when first met.
            graph.capture_begin(pool=self.pool, capture_error_mode="relaxed")
            found = step()
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)

        def replay() -> Result:
            graph.replay()
            return found

        return replay
