"""Scenarios in which two ranks write and read sharded checkpoints, run by the same processes as the others."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scenarios import HALF, Scenario, make_trainer, open_checkpoint, save
from torch.distributed.tensor import DTensor

from heedful.errors import HeedfulError
from heedful.training.checkpoint.sharded_tensors import StoredTensor, is_sharded
from heedful.training.distributed.process_group import ProcessGroup

SHARDED = Scenario("encoder_decoder", {"shard": True}, resume="in double precision, sharded", steps=HALF)


@contextmanager
def file_size_limit(size: int) -> Any:
    """Let this process write no larger file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def disk_full_on_rank_one(folder: Path, process_group: ProcessGroup) -> None:
    """Write the error that each rank raises."""
    trainer = make_trainer(SHARDED, process_group)
    trainer.restore(*open_checkpoint(folder.parent / SHARDED.resume / "middle"))
    save(trainer, folder / "checkpoints")
    trainer.progress.step += 1
    try:
        with file_size_limit(1000 if process_group.rank else sys.maxsize):
            save(trainer, folder / "checkpoints")
    except HeedfulError as error:
        (folder / f"error-{process_group.rank}").write_text(str(error))


def no_full_tensors(folder: Path, process_group: ProcessGroup) -> None:
    """Restore and save with the gathering of tensors disabled, and count the values read."""
    trainer = make_trainer(SHARDED, process_group)
    read, get_slices = [0], StoredTensor.__getitem__

    def counted(self: StoredTensor, slices: Any) -> Any:
        values = get_slices(self, slices)
        read[0] += values.numel()
        return values

    def disabled(*_: Any, **__: Any) -> None:
        raise AssertionError("a full tensor is gathered")

    original = DTensor.full_tensor, DTensor.redistribute
    StoredTensor.__getitem__ = counted  # type: ignore[method-assign]
    DTensor.full_tensor = DTensor.redistribute = disabled  # type: ignore[method-assign, assignment]
    try:
        trainer.restore(*open_checkpoint(folder.parent / SHARDED.resume / "middle"))
        save(trainer, folder / "checkpoints")
    finally:
        StoredTensor.__getitem__ = get_slices  # type: ignore[method-assign]
        DTensor.full_tensor, DTensor.redistribute = original  # type: ignore[method-assign]
    tensors, _ = trainer.state()
    total = sum(tensor.numel() for tensor in tensors.values())
    sharded = sum(tensor.numel() for tensor in tensors.values() if is_sharded(tensor))
    (folder / f"read-by-{process_group.rank}").write_text(
        json.dumps({"read": read[0], "total": total, "sharded": sharded})
    )


CHECKPOINT_SCENARIOS: dict[str, Callable[[Path, ProcessGroup], None]] = {
    "disk full on rank 1": disk_full_on_rank_one,
    "no full tensors": no_full_tensors,
}
