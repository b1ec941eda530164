"""Training state on disk: a folder a step, written aside, synced, summed, renamed. Never pickled.

    step-00000500.tmp/ → write → fsync → manifest.json (size, SHA-256) → fsync → rename to step-00000500/

State is a flat dict of named tensors and a few facts that fit into JSON; what they mean is not known here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.errors import CheckpointError, HeedfulError
from heedful.folder import read_manifest, sync, write_manifest

TENSORS, FACTS = "state.safetensors", "facts.json"
FORMAT = "heedful-training-1"


@dataclass(frozen=True)
class Checkpoint:
    """The state after a step of the run of this name."""

    run: str
    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @property
    def folder(self) -> str:
        return f"step-{self.step:08d}"


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Add a checkpoint to those in `folder`, then drop all but the `keep` newest up to it.

    Later ones belong to steps that are about to be taken again: they go, too.
    """
    final = folder / checkpoint.folder
    aside = final.with_suffix(".tmp")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    size = sum(tensor.nbytes for tensor in tensors.values())
    about = {"format": FORMAT, "run": checkpoint.run, "step": checkpoint.step}
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_file(tensors, aside / TENSORS)
        (aside / FACTS).write_text(json.dumps({**about, **checkpoint.facts}) + "\n", encoding="utf-8")
        write_manifest(aside, (TENSORS, FACTS))
        sync(aside)
        _remove([path for path in checkpoints(folder) if path >= final])
        aside.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        raise HeedfulError(f"{final}: the checkpoint's {size:,} bytes could not be written: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    tidy(folder, checkpoint, keep=keep)
    return final


def tidy(folder: Path, newest: Checkpoint, *, keep: int) -> None:
    """Drop what kills have left behind, and all but the `keep` newest up to this one."""
    for left in folder.glob("step-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    _remove([path for path in checkpoints(folder) if path.name <= newest.folder][keep:])


def _remove(paths: list[Path]) -> None:
    """By renaming first, so that a kill never leaves half a checkpoint under a name that promises a whole one."""
    for path in paths:
        aside = path.with_suffix(".old.tmp")
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """Those in `folder`, newest first; not yet known to be whole."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def read_checkpoint(path: Path, run: str) -> Checkpoint:
    """The checkpoint at `path`, if it is whole and of this run."""
    read_manifest(path, (TENSORS, FACTS))
    try:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
        if facts.pop("format") != FORMAT:
            raise CheckpointError(f"{path / FACTS} is of another format than {FORMAT}")
        found = Checkpoint(facts.pop("run"), facts.pop("step"), load_file(path / TENSORS), facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} is no checkpoint of heedful: {error}") from None
    if found.run != run:
        raise CheckpointError(f"{path} belongs to another run")
    return found


def newest_checkpoint(folder: Path, run: str, warn: Callable[[str], object]) -> Checkpoint:
    """The newest that is whole; each that is not is passed over with a warning."""
    faults = []
    for path in checkpoints(folder):
        try:
            return read_checkpoint(path, run)
        except CheckpointError as error:
            faults.append(str(error))
            warn(f"{error}; going back to an older checkpoint")
    raise CheckpointError(f"{folder} holds no whole checkpoint: {'; '.join(faults) or 'it is empty'}")
