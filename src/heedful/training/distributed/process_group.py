"""Several processes that train one model, each on its device: who they are, and all that they do together.

The same command is started many times, by torchrun or by SLURM's srun, and each process finds its place in the
environment. A process by itself is a world of one, where doing something together is doing it: the loop has one form.

Every process makes the whole of each batch and learns from its share, so that order and number of labels are those of
one device and need not be talked about; what is added up over processes is the loss and its gradients.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from heedful.device import select_device
from heedful.errors import HeedfulError, UsageError
from heedful.training.distributed.gradient_all_reduce import Summing
from heedful.training.distributed.heartbeat import Pulse
from heedful.training.distributed.rank import RankInfo, rank_from_environment

JOIN_TIMEOUT = 300.0
"""For all processes to come together: machines of a cluster do not start at once."""
FOR_EVER = timedelta(days=30)
"""Waiting for another's work is no fault, however long it takes; whether the other is alive its pulse tells."""
STOP_CHECK_EVERY = 10
"""Steps after which processes ask each other whether to stop: asking makes each wait for all."""

T = TypeVar("T")


class ProcessGroup:
    """A process alone: whatever is to be done together it has done already."""

    rank, size = 0, 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether it reads, decides, writes and reports for all."""
        return self.rank == 0

    def device_for(self, requested: str) -> str:
        return requested

    def local_batches(self, batches: Sequence[Any]) -> Sequence[Any]:
        """This process's part of the batches of a step: whole ones if they can be dealt out evenly, else rows."""
        if len(batches) % self.size == 0:
            return batches[self.rank :: self.size]
        return [shard_rows(batch, self.rank, self.size) for batch in batches]

    def rank_seed(self, seed: int) -> int:
        """For what is drawn at random: another in each process, since each has other rows."""
        return (seed + self.rank * 0x9E3779B97F4A7C15) % (1 << 64)

    def summing(self, model: nn.Module, *, early: bool) -> AbstractContextManager[None]:
        """When this ends, gradients are those of all shares. Early: they come by one way back, within this."""
        return nullcontext()

    def all_reduce(self, tensor: Tensor) -> None:
        """Put the sum over all processes in a number's place."""

    def broadcast_from_rank_zero(self, work: Callable[[], T]) -> T:
        """What the first process makes of it, given to all."""
        return work()

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        """What each process makes of it, given to all. Where one fails, none goes on."""
        return [work()]

    def run_on_rank_zero(self, work: Callable[[], object]) -> None:
        """Done once, for all; and done when this returns."""
        self.all_gather(lambda: work() if self.is_rank_zero else None)

    def shared_stop_signal(self, received: int, step: int) -> int:
        """The signal that asks to stop, whichever process it was sent to."""
        return received

    def broadcast_run_path(self, path: str) -> None:
        """Say where the run is that all are to train."""

    def receive_run_path(self) -> str:
        """Wait until the first process has said where the run is."""
        raise NotImplementedError

    def shut_down(self, *, barrier: bool = True) -> None:
        """The end of doing things together."""


SINGLE_PROCESS = ProcessGroup()


def shard_rows(batch: Any, rank: int, size: int) -> Any:
    """Every size-th row. Where there is none left, the first row with nothing to learn from it: a process without
    rows still has to take part in what all do together."""
    tensors = {field.name: value for field in fields(batch) if isinstance(value := getattr(batch, field.name), Tensor)}
    if rank < len(batch.labels):
        return replace(batch, **{name: tensor[rank::size] for name, tensor in tensors.items()})
    first = replace(batch, **{name: tensor[:1] for name, tensor in tensors.items()})
    return replace(first, labels=torch.full_like(first.labels, batch.ignore_index))


class DistributedProcessGroup(ProcessGroup):
    """One of several processes, joined by gloo (CPU) and NCCL (GPUs)."""

    def __init__(self, place: RankInfo, wanted: str) -> None:
        self.rank, self.size = place.rank, place.size
        self.device = local_device(place, wanted)
        self.told = self.left = False
        self.sums: Summing | None = None
        self.store = meet(place)
        self.pulse = Pulse(_connect(place, server=False), self.rank, self.size)
        self.pulse.roll_call(JOIN_TIMEOUT)
        self.pulse.start()
        cuda = self.device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=PrefixStore("group", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=FOR_EVER,
            device_id=self.device if cuda else None,
        )

    def device_for(self, requested: str) -> str:
        return str(self.device)

    def summing(self, model: nn.Module, *, early: bool) -> AbstractContextManager[None]:
        if self.sums is None or self.sums.model is not model:
            self.sums = Summing(model)
        return self.sums.over(early=early)

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def broadcast_from_rank_zero(self, work: Callable[[], T]) -> T:
        box: list[Any] = [work() if self.is_rank_zero else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        found: T = box[0]
        return found

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        mine: list[T] = []
        fault: HeedfulError | None = None
        try:
            mine.append(work())
        except HeedfulError as error:
            fault = error
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, (mine, str(fault)))
        if fault is not None:
            raise fault
        for found, words in box:
            if not found:
                raise HeedfulError(words)
        return [found[0] for found, _ in box]

    def shared_stop_signal(self, received: int, step: int) -> int:
        if step % STOP_CHECK_EVERY:
            return 0
        most = torch.tensor(received)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    def broadcast_run_path(self, path: str) -> None:
        self.told = True
        self.store.set("run", path)

    def receive_run_path(self) -> str:
        try:
            path = str(self.store.get("run").decode())
        except dist.DistError:
            path = ""
        if not path:
            raise HeedfulError("the first process could not begin the run: see what it says")
        return path

    def shut_down(self, *, barrier: bool = True) -> None:
        if self.left:
            return
        self.left = True
        if self.is_rank_zero and not self.told:
            self.broadcast_run_path("")
        self.pulse.stop()
        if barrier:
            dist.all_reduce(torch.zeros(1))
        dist.destroy_process_group()


def local_device(place: RankInfo, wanted: str) -> torch.device:
    """The GPU of this process's number on its machine."""
    device = select_device(wanted)
    if device.type != "cuda" or device.index is not None:
        return device
    if place.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"process {place.local_rank} of {socket.gethostname()} finds {torch.cuda.device_count()} GPU(s) there: "
            "start one process for each"
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def meet(place: RankInfo) -> Store:
    """Where processes leave word for each other. torchrun keeps it; without torchrun the first process does."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _connect(place, server=place.rank == 0 and not kept)
    store.set_timeout(FOR_EVER)
    return store


def _connect(place: RankInfo, *, server: bool) -> Store:
    try:
        store = TCPStore(place.host, place.port, None, server, timedelta(seconds=JOIN_TIMEOUT), wait_for_workers=False)
    except (dist.DistError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise HeedfulError(f"rank {place.rank}: nobody to meet at {place.host}:{place.port}: {why}") from None
    return PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


@contextmanager
def join_process_group(requested_device: str) -> Iterator[ProcessGroup]:
    """The world this process was started into, on the device it wants."""
    place = rank_from_environment(os.environ)
    if place is None:
        yield SINGLE_PROCESS
        return
    world = DistributedProcessGroup(place, requested_device)
    try:
        yield world
    except BaseException:
        world.shut_down(barrier=False)
        raise
    world.shut_down()
