"""Run manifest: what a run started with, written once; a resumed run must agree with it.

    training/run.json       recipe, model config, checksums of data and tokenizers, machine
    training/step-…/        checkpoints, each of which holds the SHA-256 of its run.json
    training/lock           held by the process that trains

The folder `training` is needed for resuming only and can be deleted when a run is finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import heedful
from heedful.data.corpus_files import content_hash
from heedful.errors import CheckpointError, DataError, HeedfulError, UsageError
from heedful.files import write_atomic
from heedful.model_files import TARGET_TOKENIZER_FILE, TASK_FILE, TOKENIZER_FILE, TRAINING_TEXT_FILE
from heedful.models.model_config import ModelConfig
from heedful.text.tokenizer import Tokenizer
from heedful.training.recipe import Recipe, absolute_paths, make_recipe, relative_paths
from heedful.training.run_catalog import RECIPE_FILE

STATE_FOLDER, MANIFEST_FILE, LOCK_FILE = "training", "run.json", "lock"
SPLIT_NAMES = ("train", "valid", "test")
CHANGEABLE_SETTINGS = (
    "training.patience",
    "training.workers",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.shard",
)
"""Settings that may change when a run is resumed: the steps already trained do not depend on them."""
MOVABLE_FILES = tuple(f"data.{name}" for name in SPLIT_NAMES)
"""Files may move as long as their contents do not change."""
OPEN_ENDED_SCHEDULES = ("constant", "inverse_root")
"""Learning-rate schedules that do not depend on the number of steps."""


@dataclass(frozen=True)
class RunManifest:
    """The recipe, data and machine that a run started with; `run_id` is the SHA-256 of its run.json."""

    run_id: str
    recipe: Recipe
    config: dict[str, Any]
    files: dict[str, list[str]]
    tokenizers: list[str]
    machine: dict[str, str | int]
    forecast: dict[str, Any]

    def check_folder(self, folder: Path) -> None:
        """Raise an error if the run's folder was moved or deleted: a new one in its place could not be resumed."""
        tokenizers = (TOKENIZER_FILE, TARGET_TOKENIZER_FILE)[: len(self.tokenizers)]
        for name in (f"{STATE_FOLDER}/{MANIFEST_FILE}", *tokenizers):
            if not (folder / name).is_file():
                raise HeedfulError(f"{folder / name} is gone: moved or deleted while the run was training in {folder}")


def write_run_manifest(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    tokenizers: tuple[Tokenizer, ...],
    device: torch.device,
    forecast: dict[str, Any],
) -> RunManifest:
    """Write run.json."""
    content = {
        "recipe": relative_paths(recipe.model_dump(mode="json"), folder),
        "config": config.model_dump(mode="json"),
        "files": data_checksums(recipe),
        "tokenizers": tokenizer_checksums(tokenizers),
        "machine": machine_info(device),
        "forecast": forecast,
    }
    (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STATE_FOLDER / MANIFEST_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return read_run_manifest(folder)


def read_run_manifest(folder: Path) -> RunManifest:
    """Read run.json."""
    file = folder / STATE_FOLDER / MANIFEST_FILE
    try:
        text = file.read_bytes()
        content = json.loads(text)
        recipe = make_recipe(absolute_paths(content.pop("recipe"), folder))
        return RunManifest(hashlib.sha256(text).hexdigest(), recipe, **content)
    except FileNotFoundError:
        missing = f"{STATE_FOLDER}/{MANIFEST_FILE}"
        raise CheckpointError(f"{folder} is not a run that can be resumed: it has no {missing}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, HeedfulError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None


class RunFolderLockedError(UsageError):
    """Another process is training in the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process is training in {folder}: wait for it, or stop it first")


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Lock a run's folder for this process. The kernel releases the lock however the process ends; data
    loader processes do not inherit it."""
    (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    with (folder / STATE_FOLDER / LOCK_FILE).open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise RunFolderLockedError(folder) from None
        except OSError:
            pass  # a file system without locks
        yield


def is_occupied(folder: Path) -> bool:
    """Whether a folder has contents; files of a run that was killed while its folder was created do not count."""
    if not folder.is_dir():
        return folder.exists()
    created_first = (STATE_FOLDER, TOKENIZER_FILE, TARGET_TOKENIZER_FILE, TASK_FILE, TRAINING_TEXT_FILE)
    ignored = {*created_first, *(f"{name}.tmp" for name in (*created_first, RECIPE_FILE))}
    return any(file.name not in ignored for file in folder.iterdir())


def machine_info(device: torch.device) -> dict[str, str | int]:
    """The versions and hardware that results depend on besides recipe and data."""
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
        "torch": torch.__version__,
        "heedful": heedful.__version__,
    }


def tokenizer_checksums(tokenizers: tuple[Tokenizer, ...]) -> list[str]:
    """SHA-256 of each tokenizer."""
    return [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers]


def data_checksums(recipe: Recipe) -> dict[str, list[str]]:
    """SHA-256 of the contents of each file of each split."""
    return {name: [content_hash([file]) for file in getattr(recipe.data, name)] for name in SPLIT_NAMES}


def check_data_unchanged(manifest: RunManifest, recipe: Recipe) -> None:
    """Raise an error if the contents of a data file, which may have moved, differ from those the run started with."""
    checksums = data_checksums(recipe)
    for name in SPLIT_NAMES:
        files = getattr(recipe.data, name)
        for file, before, now in zip(files, manifest.files[name], checksums[name], strict=True):
            if before != now:
                raise DataError(f"{file} has changed since the run began: restore it, or start a new run")


def check_recipe_unchanged(manifest: RunManifest, recipe: Recipe, folder: Path) -> None:
    """Raise an error that lists every setting which differs from the run's recipe and must not change."""
    steps = ("training.steps",) if recipe.training.schedule in OPEN_ENDED_SCHEDULES else ()
    changeable = {*CHANGEABLE_SETTINGS, *MOVABLE_FILES, *steps}
    before, now = flatten_recipe(manifest.recipe), flatten_recipe(recipe)
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    refused = [key for key in changed if key not in changeable]
    refused += [key for key in changed if key in MOVABLE_FILES and len(before[key]) != len(now[key])]
    if refused:
        listed = "; ".join(f"{key} was {before.get(key)!r} and is now {now.get(key)!r}" for key in refused)
        raise UsageError(
            f"the run in {folder} began with another recipe: {listed}. Start a new run for these; "
            f"a resumed run may change: {', '.join(sorted(changeable))}"
        )


def flatten_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as one level of dotted keys."""
    result: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        result |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return result


def machine_differences(manifest: RunManifest, device: torch.device) -> str:
    """The differences from the machine that the run started on; empty if there are none."""
    now = machine_info(device)
    return ", ".join(f"{name} {old} → {now[name]}" for name, old in manifest.machine.items() if old != now[name])
