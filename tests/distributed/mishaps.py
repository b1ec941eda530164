"""What two processes go through when they write and read a checkpoint in parts: the same two, after the walks."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.tensor import DTensor
from walks import HALF, Walk, keep, make, opened

from heedful.errors import HeedfulError
from heedful.training.checkpoint.sharded_tensors import StoredTensor, is_sharded
from heedful.training.distributed.process_group import ProcessGroup

SHARDED = Walk("encoder_decoder", {"shard": True}, resume="in double precision, sharded", steps=HALF)


@contextmanager
def small_files(size: int) -> Any:
    """As on a full disk: nothing larger can be written by this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def disk_full_for_the_second(folder: Path, world: ProcessGroup) -> None:
    """Whose own line it is, and what the other hears."""
    trainer = make(SHARDED, world)
    trainer.restore(*opened(folder.parent / SHARDED.resume / "middle"))
    keep(trainer, folder / "kept")
    trainer.progress.step += 1
    try:
        with small_files(1000 if world.rank else sys.maxsize):
            keep(trainer, folder / "kept")
    except HeedfulError as error:
        (folder / f"said-by-{world.rank}").write_text(str(error))


def nothing_is_put_together(folder: Path, world: ProcessGroup) -> None:
    """Restoring and saving, with all that would put a tensor together out of order; and how much of it was read."""
    trainer = make(SHARDED, world)
    read, get = [0], StoredTensor.__getitem__

    def counted(self: StoredTensor, block: Any) -> Any:
        found = get(self, block)
        read[0] += found.numel()
        return found

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a whole tensor is asked for")

    sound = DTensor.full_tensor, DTensor.redistribute
    StoredTensor.__getitem__ = counted  # type: ignore[method-assign]
    DTensor.full_tensor = DTensor.redistribute = never  # type: ignore[method-assign, assignment]
    try:
        trainer.restore(*opened(folder.parent / SHARDED.resume / "middle"))
        keep(trainer, folder / "kept")
    finally:
        StoredTensor.__getitem__ = get  # type: ignore[method-assign]
        DTensor.full_tensor, DTensor.redistribute = sound  # type: ignore[method-assign]
    tensors, _ = trainer.state()
    whole = sum(tensor.numel() for tensor in tensors.values())
    cut = sum(tensor.numel() for tensor in tensors.values() if is_sharded(tensor))
    (folder / f"read-by-{world.rank}").write_text(json.dumps({"read": read[0], "whole": whole, "cut": cut}))


MISHAPS: dict[str, Callable[[Path, ProcessGroup], None]] = {
    "disk full for the second": disk_full_for_the_second,
    "nothing is put together": nothing_is_put_together,
}
