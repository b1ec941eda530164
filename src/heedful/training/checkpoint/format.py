"""Checkpoint format: one folder per step, of safetensors and JSON, complete or absent; nothing is pickled.

    step-00000500.tmp/ → write → fsync → manifest.json (size, SHA-256) → fsync → rename to step-00000500/

The state is a flat dict of named tensors and metadata that fits into JSON. Each rank writes its shards of sharded
tensors, rank 0 also all others. Each rank reads only what it needs, so that no rank ever holds a full sharded tensor,
and a run can be resumed by any number of processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from heedful.errors import CheckpointError, HeedfulError
from heedful.files import Checksum, commit_folder, verify_manifest, write_manifest
from heedful.training.checkpoint.sharded_tensors import SliceableTensor, is_sharded, open_shards, write_shards
from heedful.training.distributed.fsdp import local_shard
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup

METADATA_FILE = "metadata.json"
FORMAT = "heedful-training-1"


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after a step."""

    run_id: str
    step: int
    tensors: dict[str, SliceableTensor]
    metadata: dict[str, Any]

    @property
    def folder_name(self) -> str:
        return f"step-{self.step:08d}"


def shard_file_name(number: int, files: int) -> str:
    """The name of a rank's file; a single file has no number."""
    return "state.safetensors" if files == 1 else f"state-{number + 1:05d}-of-{files:05d}.safetensors"


def write_checkpoint(
    folder: Path, checkpoint: Checkpoint, *, keep: int, process_group: ProcessGroup = SINGLE_PROCESS
) -> Path:
    """Write a checkpoint into `folder`, by all ranks together, then delete all but the `keep` newest up to it.

    If one rank cannot write its file, all raise an error and no checkpoint appears.
    """
    path = folder / checkpoint.folder_name
    temporary = path.with_suffix(".tmp")
    rank_zero, tensors = process_group.is_rank_zero, checkpoint.tensors
    files = process_group.size if any(map(is_sharded, tensors.values())) else 1
    shards = {name: local_shard(tensor) for name, tensor in tensors.items() if rank_zero or is_sharded(tensor)}
    size = sum(shard.tensor.nbytes for shard in shards.values())

    @_write_errors(path, size)
    def create_folder() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)

    @_write_errors(path, size)
    def write_file() -> dict[str, Checksum]:
        if process_group.rank >= files:
            return {}
        name = shard_file_name(process_group.rank, files)
        return {name: write_shards(temporary / name, shards)}

    @_write_errors(path, size)
    def commit() -> None:
        """Write metadata and manifest, then rename the complete folder to its final name.

        Checkpoints of later steps, which are about to be trained again, are deleted.
        """
        header = {"format": FORMAT, "run": checkpoint.run_id, "step": checkpoint.step, "parts": len(checksums)}
        content = json.dumps({**header, **checkpoint.metadata}) + "\n"
        (temporary / METADATA_FILE).write_text(content, encoding="utf-8")
        write_manifest(temporary, (METADATA_FILE,), checksums)
        _remove([later for later in list_checkpoints(folder) if later >= path])
        commit_folder(temporary, path)

    try:
        process_group.run_on_rank_zero(create_folder)
        checksums = {name: value for part in process_group.all_gather(write_file) for name, value in part.items()}
        process_group.run_on_rank_zero(commit)
    finally:
        if rank_zero:
            shutil.rmtree(temporary, ignore_errors=True)
    if rank_zero:
        prune_checkpoints(folder, checkpoint, keep=keep)
    return path


@contextmanager
def _write_errors(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HeedfulError(f"{path}: the checkpoint's {size:,} bytes could not be written: {error}") from None


def prune_checkpoints(folder: Path, newest: Checkpoint, *, keep: int) -> None:
    """Delete what killed processes left behind, and all but the `keep` newest checkpoints up to this one."""
    for abandoned in folder.glob("step-*.tmp"):
        shutil.rmtree(abandoned, ignore_errors=True)
    _remove([path for path in list_checkpoints(folder) if path.name <= newest.folder_name][keep:])


def _remove(paths: list[Path]) -> None:
    """Rename before deleting, so that a kill never leaves half a checkpoint under a valid name."""
    for path in paths:
        temporary = path.with_suffix(".old.tmp")
        path.rename(temporary)
        shutil.rmtree(temporary, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first, unverified."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def read_checkpoint(path: Path, run_id: str, *, trusted: bool = False) -> Checkpoint:
    """Open a checkpoint of this run; its tensors are read when slices of them are taken.

    `trusted` skips the checksums: they have been verified already.
    """
    try:
        if not trusted:
            verify_manifest(path)
        metadata = json.loads((path / METADATA_FILE).read_text(encoding="utf-8"))
        if (version := metadata.pop("format")) != FORMAT:
            raise CheckpointError(f"{path / METADATA_FILE} has format {version}, expected {FORMAT}")
        files = metadata.pop("parts", 1)
        tensors = open_shards(path / shard_file_name(number, files) for number in range(files))
        checkpoint = Checkpoint(metadata.pop("run"), metadata.pop("step"), {**tensors}, metadata)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a valid checkpoint: {error}") from None
    if checkpoint.run_id != run_id:
        raise CheckpointError(f"{path} belongs to another run")
    return checkpoint


def newest_checkpoint(folder: Path, run_id: str, warn: Callable[[str], object]) -> Checkpoint:
    """Open the newest undamaged checkpoint; each damaged one is skipped with a warning."""
    errors = []
    for path in list_checkpoints(folder):
        try:
            return read_checkpoint(path, run_id)
        except CheckpointError as error:
            errors.append(str(error))
            warn(f"{error}; trying an older checkpoint")
    raise CheckpointError(f"{folder} has no undamaged checkpoint: {'; '.join(errors) or 'it is empty'}")
