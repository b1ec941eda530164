"""The folder of a run: chosen, locked and created without overwriting anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from heedful.errors import UsageError
from heedful.files import write_atomic
from heedful.syntax import argument
from heedful.training.checkpoint.run_manifest import (
    RunFolderLockedError,
    RunManifest,
    is_occupied,
    lock_run_folder,
    write_run_manifest,
)
from heedful.training.recipe import to_toml
from heedful.training.run_catalog import RECIPE_FILE
from heedful.training.setup import PreparedRun


def choose_run_folder(out: str | Path | None, task: str) -> Path:
    """The requested folder, which must be free and writable, or else the next free TASK-1, TASK-2, …"""
    if out is None:
        return next(path for n in range(1, 100_000) if not (path := Path(f"{task}-{n}")).exists())
    folder = Path(out)
    if is_occupied(folder):
        raise UsageError(f"{folder} exists and is not empty; choose another folder: {argument('out', 'DIR')}")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"cannot write to {folder}: {parent} is not a writable folder")
    return folder


@contextmanager
def claim_run_folder(out: str | Path | None, task: str) -> Iterator[Path]:
    """Lock a free folder for this process. Another process may have taken one while the text was being read."""
    while True:
        folder = choose_run_folder(out, task)
        try:
            with lock_run_folder(folder):
                if not is_occupied(folder):
                    yield folder
                    return
        except RunFolderLockedError:
            if out is not None:
                raise


@contextmanager
def create_run_folder(prepared: PreparedRun, folder: Path) -> Iterator[RunManifest]:
    """Write tokenizers, task settings and run manifest; recipe.toml follows when the block ends.

    A folder with a recipe.toml can be resumed, so the block writes the first checkpoint. If it fails, the folder goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, content in prepared.files().items():
            write_atomic(folder / name, content)
        yield write_run_manifest(
            folder,
            prepared.recipe,
            prepared.config,
            prepared.data.tokenizers,
            prepared.device,
            asdict(prepared.forecast),
        )
        write_atomic(folder / RECIPE_FILE, to_toml(prepared.recipe, folder))
    except BaseException:
        remove_run_folder(folder)
        raise


def remove_run_folder(folder: Path) -> None:
    """Delete the folder of a run that failed."""
    shutil.rmtree(folder, ignore_errors=True)
