"""Data-parallel training with torch's DistributedDataParallel (DDP), which sums gradients here instead of averaging.

The loss is summed over the target tokens of all ranks and divided once by their number, so gradients are summed, too.
DDP sends a bucket of gradients as soon as it is complete, while the backward pass still computes lower layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heedful.objectives.objective import LossModule
from heedful.training.checkpoint.sharded_tensors import is_sharded

BUCKET_MEGABYTES = 25.0
"""Gradients sent at a time: DDP's default."""


def data_parallel(module: LossModule) -> nn.Module:
    """Wrap a loss so that its backward pass sums gradients over all ranks, which FSDP does without a wrapper.

    Gradients are views into DDP's buckets, which saves a copy of them. The model's own `state_dict` keeps its names.
    DDP arranges its buckets after the first step: with three or more ranks, sums of the first step after a resume may
    differ in their last bit from those of an uninterrupted run.
    """
    if any(map(is_sharded, module.parameters())):
        return module
    parallel = DistributedDataParallel(module, bucket_cap_mb=BUCKET_MEGABYTES, gradient_as_bucket_view=True)
    # Without a hook, DDP would divide by the number of ranks.
    parallel.register_comm_hook(None, lambda _, bucket: _sum(bucket.buffer()))
    return parallel


def _sum(buffer: Tensor) -> Any:
    """Start an all-reduce that sums, and return the future of its result."""
    work = dist.all_reduce(buffer, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def no_sync(module: nn.Module) -> AbstractContextManager[None]:
    """Keep gradients local, as in all but the last batch of gradient accumulation."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


def all_reduce_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum gradients after the backward pass, for CUDA graphs: a replay runs no hooks that DDP could follow.

    FSDP has already summed the gradients of sharded parameters.
    """
    gradients = [weight.grad for weight in parameters if weight.grad is not None and not is_sharded(weight)]
    if gradients:
        with dist._coalescing_manager():  # type: ignore[attr-defined]  # one launch for all of them
            for gradient in gradients:
                dist.all_reduce(gradient)
