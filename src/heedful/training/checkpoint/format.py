"""Training state on disk: a folder a step, written aside, synced, summed, renamed. Never pickled.

    step-00000500.tmp/ → write → fsync → manifest.json (size, SHA-256) → fsync → rename to step-00000500/

State is a flat dict of named tensors and a few facts that fit into JSON; what they mean is not known here. Each process
writes and sums what it keeps of tensors that are cut, the first one all else; and each reads what it needs, so that
nobody ever holds a whole tensor of those, and any number of processes can go on.
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

METADATA_FILE = "facts.json"
FORMAT = "heedful-training-1"


@dataclass(frozen=True)
class Checkpoint:
    """The state after a step of the run of this name."""

    run_id: str
    step: int
    tensors: dict[str, SliceableTensor]
    metadata: dict[str, Any]

    @property
    def folder_name(self) -> str:
        return f"step-{self.step:08d}"


def shard_file_name(number: int, parts: int) -> str:
    """The file of a process's tensors; one by itself has no number."""
    return "state.safetensors" if parts == 1 else f"state-{number + 1:05d}-of-{parts:05d}.safetensors"


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int, process_group: ProcessGroup = SINGLE_PROCESS) -> Path:
    """Add a checkpoint to those in `folder`, then drop all but the `keep` newest up to it.

    All processes of a world do this together. One that cannot write its part ends it for all.
    """
    final = folder / checkpoint.folder_name
    aside = final.with_suffix(".tmp")
    parts = process_group.size if any(map(is_sharded, checkpoint.tensors.values())) else 1

    def make_room() -> None:
        with _write_errors(final, 0):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)

    def write_own() -> dict[str, Checksum]:
        mine = {name: local_shard(t) for name, t in checkpoint.tensors.items() if process_group.is_rank_zero or is_sharded(t)}
        if process_group.rank >= parts:
            return {}
        with _write_errors(final, sum(own.tensor.nbytes for own in mine.values())):
            name = shard_file_name(process_group.rank, parts)
            return {name: write_shards(aside / name, mine)}

    try:
        process_group.run_on_rank_zero(make_room)
        sums = {name: found for own in process_group.all_gather(write_own) for name, found in own.items()}
        process_group.run_on_rank_zero(lambda: _finish(aside, final, checkpoint, sums))
    finally:
        if process_group.is_rank_zero:
            shutil.rmtree(aside, ignore_errors=True)
    if process_group.is_rank_zero:
        prune_checkpoints(folder, checkpoint, keep=keep)
    return final


def _finish(aside: Path, final: Path, checkpoint: Checkpoint, sums: dict[str, Checksum]) -> None:
    """All parts are there: say so, and give them their name.

    Later checkpoints belong to steps that are about to be taken again: they go.
    """
    about = {"format": FORMAT, "run": checkpoint.run_id, "step": checkpoint.step, "parts": len(sums)}
    with _write_errors(final, sum(size for size, _ in sums.values())):
        (aside / METADATA_FILE).write_text(json.dumps({**about, **checkpoint.metadata}) + "\n", encoding="utf-8")
        write_manifest(aside, (METADATA_FILE,), sums)
        _remove([path for path in list_checkpoints(final.parent) if path >= final])
        commit_folder(aside, final)


@contextmanager
def _write_errors(final: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HeedfulError(f"{final}: the checkpoint's {size:,} bytes could not be written: {error}") from None


def prune_checkpoints(folder: Path, newest: Checkpoint, *, keep: int) -> None:
    """Drop what kills have left behind, and all but the `keep` newest up to this one."""
    for left in folder.glob("step-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    _remove([path for path in list_checkpoints(folder) if path.name <= newest.folder_name][keep:])


def _remove(paths: list[Path]) -> None:
    """By renaming first, so that a kill never leaves half a checkpoint under a name that promises a whole one."""
    for path in paths:
        aside = path.with_suffix(".old.tmp")
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """Those in `folder`, newest first; not yet known to be whole."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def read_checkpoint(path: Path, run_id: str, *, trusted: bool = False) -> Checkpoint:
    """The checkpoint at `path`, if it is whole and of this run; one that is trusted has been summed already.

    Its tensors stay in their files until somebody asks for them.
    """

    def check(*names: str) -> None:
        if not trusted:
            verify_manifest(path, names)

    check(METADATA_FILE)
    try:
        facts = json.loads((path / METADATA_FILE).read_text(encoding="utf-8"))
        if facts.pop("format") != FORMAT:
            raise CheckpointError(f"{path / METADATA_FILE} is of another format than {FORMAT}")
        parts = facts.pop("parts", 1)
        names = [shard_file_name(number, parts) for number in range(parts)]
        check(*names)
        tensors: dict[str, SliceableTensor] = {**open_shards(path / name for name in names)}
        found = Checkpoint(facts.pop("run"), facts.pop("step"), tensors, facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} is no checkpoint of heedful: {error}") from None
    if found.run_id != run_id:
        raise CheckpointError(f"{path} belongs to another run")
    return found


def newest_checkpoint(folder: Path, run_id: str, warn: Callable[[str], object]) -> Checkpoint:
    """The newest that is whole; each that is not is passed over with a warning."""
    faults = []
    for path in list_checkpoints(folder):
        try:
            return read_checkpoint(path, run_id)
        except CheckpointError as error:
            faults.append(str(error))
            warn(f"{error}; going back to an older checkpoint")
    raise CheckpointError(f"{folder} holds no whole checkpoint: {'; '.join(faults) or 'it is empty'}")
