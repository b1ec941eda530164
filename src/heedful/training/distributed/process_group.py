"""Process group: the ranks that train one model together, each on its own device.

The same command is started once per device, by torchrun or by SLURM's srun; each process reads its rank from the
environment. A single process is a group of size 1 in which every collective is a no-op, so training has one code path.

Every rank builds each batch in full and trains on its share of the rows: the order of the data and the number of
target tokens are those of a single device and need no communication. The loss and its gradients are summed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from heedful.device import select_device
from heedful.errors import HeedfulError, UsageError
from heedful.objectives.objective import tensors_of
from heedful.training.distributed.rank import RankInfo, rank_from_environment
from heedful.training.distributed.rank_store import LostRankError, RankStore, connect

STOP_CHECK_EVERY = 10
"""Steps between checks whether any rank received a stop signal: each check synchronizes all ranks."""

T = TypeVar("T")


class ProcessGroup:
    """A single process: every collective is a no-op."""

    rank, size = 0, 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process reads the data, evaluates, writes and reports for all ranks."""
        return self.rank == 0

    def device_for(self, requested: str) -> str:
        return requested

    def local_batches(self, batches: Sequence[Any]) -> Sequence[Any]:
        """This rank's share of the batches of a step: whole batches if their number divides evenly, else rows."""
        if len(batches) % self.size == 0:
            return batches[self.rank :: self.size]
        return [shard_rows(batch, self.rank, self.size) for batch in batches]

    def rank_seed(self, seed: int) -> int:
        """A seed for dropout that differs between ranks, since their rows do."""
        return (seed + self.rank * 0x9E3779B97F4A7C15) % (1 << 64)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""

    def broadcast_from_rank_zero(self, compute: Callable[[], T]) -> T:
        """Run `compute` on rank 0 and return its result on all ranks."""
        return compute()

    def all_gather(self, compute: Callable[[], T]) -> list[T]:
        """Run `compute` on every rank and return all results on all ranks. If one fails, all raise an error."""
        return [compute()]

    def run_on_rank_zero(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0 while the others wait. If it fails, all raise an error."""
        self.all_gather(lambda: work() if self.is_rank_zero else None)

    def barrier(self) -> None:
        """Wait for all ranks, however long rank 0 takes."""
        self.all_gather(lambda: None)

    def shared_stop_signal(self, received: int, step: int) -> int:
        """The signal that asks to stop, whichever rank received it; 0: none."""
        return received

    def shut_down(self, *, barrier: bool = True) -> None:
        """End communication; `barrier`: wait for all ranks first."""


SINGLE_PROCESS = ProcessGroup()


def shard_rows(batch: Any, rank: int, size: int) -> Any:
    """Every size-th row of a batch. A rank that gets none takes the first row without labels: it must still take part
    in the collectives."""
    tensors = tensors_of(batch)
    if rank < len(batch.labels):
        return replace(batch, **{name: tensor[rank::size] for name, tensor in tensors.items()})
    first = replace(batch, **{name: tensor[:1] for name, tensor in tensors.items()})
    return replace(first, labels=torch.full_like(first.labels, batch.ignore_index))


class DistributedProcessGroup(ProcessGroup):
    """One of several ranks, connected by gloo (CPU) and NCCL (GPU).

    A collective that a rank does not join ends in an error after `HEEDFUL_TIMEOUT` seconds. Gloo, which carries what
    the host waits for, times out first: its error can be caught and completed by the name of the missing rank, while
    NCCL's ends the process.
    """

    def __init__(self, info: RankInfo, requested_device: str) -> None:
        self.rank, self.size = info.rank, info.size
        self.device = local_device(info, requested_device)
        self.group_store = connect(info)
        client = self.group_store.clone()  # type: ignore[attr-defined]  # a connection of its own
        self.store = RankStore(client, self.rank, self.size)
        self.store.join()
        timeout, cuda = timedelta(seconds=self.store.timeout), self.device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=PrefixStore("group", self.group_store),
            rank=self.rank,
            world_size=self.size,
            timeout=2 * timeout if cuda else timeout,
            device_id=self.device if cuda else None,
        )
        self.host_group = dist.new_group(backend="gloo", timeout=timeout) if cuda else None

    def device_for(self, requested: str) -> str:
        return str(self.device)

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def broadcast_from_rank_zero(self, compute: Callable[[], T]) -> T:
        result: T = self.store.broadcast(compute() if self.is_rank_zero else None)
        return result

    def all_gather(self, compute: Callable[[], T]) -> list[T]:
        try:
            gathered = self.store.all_gather((compute(), None))
        except LostRankError:
            raise
        except HeedfulError as error:
            self.store.all_gather((None, str(error)))
            raise
        for _, failure in gathered:
            if failure is not None:
                raise HeedfulError(failure)
        return [result for result, _ in gathered]

    def shared_stop_signal(self, received: int, step: int) -> int:
        if step % STOP_CHECK_EVERY:
            return 0
        signal = torch.tensor(received)
        dist.all_reduce(signal, dist.ReduceOp.MAX, group=self.host_group)
        return int(signal)

    def shut_down(self, *, barrier: bool = True) -> None:
        if not dist.is_initialized():
            return
        if barrier:
            dist.all_reduce(torch.zeros(1), group=self.host_group)
        self.store.close()
        dist.destroy_process_group()


def local_device(info: RankInfo, requested: str) -> torch.device:
    """The GPU with this rank's local number, or the CPU."""
    device = select_device(requested)
    if device.type != "cuda" or device.index is not None:
        return device
    if info.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {info.local_rank} on {socket.gethostname()} has no GPU: there are "
            f"{torch.cuda.device_count()}; start one process per GPU"
        )
    torch.cuda.set_device(info.local_rank)
    return torch.device("cuda", info.local_rank)


@contextmanager
def join_process_group(requested_device: str) -> Iterator[ProcessGroup]:
    """Join the process group that the environment describes; without one, train as a single process."""
    info = rank_from_environment(os.environ)
    if info is None:
        yield SINGLE_PROCESS
        return
    process_group = DistributedProcessGroup(info, requested_device)
    try:
        yield process_group
        process_group.shut_down()
    except Exception as error:
        explained = process_group.store.explain(error)
        process_group.shut_down(barrier=False)
        if process_group.is_rank_zero:
            process_group.store.wait_for_readers()
        if explained is error:
            raise
        raise explained from None
    except BaseException:
        process_group.shut_down(barrier=False)
        raise
