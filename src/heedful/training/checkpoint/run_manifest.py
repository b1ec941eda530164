"""What a run began with, noted once: whoever resumes it must come with the same.

    training/run.json       recipe, model, sums of the files and tokenizers, machine
    training/step-…/        checkpoints, each of which names the run.json it belongs to
    training/lock           held by the process that trains

The folder `training` serves resuming alone and can be deleted when a run is done.
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
from heedful.data.corpus_readers import content_hash
from heedful.errors import CheckpointError, DataError, HeedfulError, UsageError
from heedful.files import write_atomic
from heedful.model_folder import TARGET_TOKENIZER_FILE, TASK_FILE, TOKENIZER_FILE
from heedful.models.model_config import ModelConfig
from heedful.text.tokenizer import Tokenizer
from heedful.training.recipe import RECIPE, Recipe, make_recipe

STATE_FOLDER, MANIFEST_FILE, LOCK_FILE = "training", "run.json", "lock"
SPLIT_NAMES = ("train", "valid", "test")
CHANGEABLE_SETTINGS = ("training.patience", "training.workers", "training.checkpoint_every", "training.keep_checkpoints", "training.shard")
"""Settings that may change on the way: what is past would have been the same with them."""
MOVABLE_FILES = tuple(f"data.{name}" for name in SPLIT_NAMES)
"""Files may have moved; it is their contents that must not change."""
OPEN_ENDED_SCHEDULES = ("constant", "inverse_root")
"""Schedules whose past does not depend on where they end."""


@dataclass(frozen=True)
class RunManifest:
    """A run as it began; `name` is the SHA-256 of its run.json."""

    run_id: str
    recipe: Recipe
    config: dict[str, Any]
    files: dict[str, list[str]]
    tokenizers: list[str]
    machine: dict[str, str | int]
    forecast: dict[str, Any]

    def check_folder(self, folder: Path) -> None:
        """A folder that is moved or deleted while a run trains in it would be made anew, and could not be resumed."""
        for name in (f"{STATE_FOLDER}/{MANIFEST_FILE}", *(TOKENIZER_FILE, TARGET_TOKENIZER_FILE)[: len(self.tokenizers)]):
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
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "files": data_checksums(recipe),
        "tokenizers": tokenizer_checksums(tokenizers),
        "machine": machine_info(device),
        "forecast": forecast,
    }
    (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STATE_FOLDER / MANIFEST_FILE, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    return read_run_manifest(folder)


def read_run_manifest(folder: Path) -> RunManifest:
    """What run.json says."""
    file = folder / STATE_FOLDER / MANIFEST_FILE
    try:
        text = file.read_bytes()
        facts = json.loads(text)
        recipe = make_recipe(facts.pop("recipe"))
        return RunManifest(hashlib.sha256(text).hexdigest(), recipe, **facts)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {STATE_FOLDER}/{MANIFEST_FILE}: it is no run that could be resumed") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, HeedfulError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None


class RunFolderLockedError(UsageError):
    """The folder of a run is in use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process is training in {folder}: wait for it, or stop it first")


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """One process at a time trains in a folder. The lock goes with its process, however that ends; its loaders, which
    may live a moment longer, do not hold it."""
    (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    with (folder / STATE_FOLDER / LOCK_FILE).open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise RunFolderLockedError(folder) from None
        except OSError:
            pass  # a file system that knows no locks
        yield


def is_occupied(folder: Path) -> bool:
    """Whether a folder holds anything; but what a run leaves that was killed while it was laid out does not count."""
    if not folder.is_dir():
        return folder.exists()
    laid_out = (STATE_FOLDER, TOKENIZER_FILE, TARGET_TOKENIZER_FILE, TASK_FILE)
    left = {*laid_out, *(f"{name}.tmp" for name in (*laid_out, RECIPE))}
    return any(file.name not in left for file in folder.iterdir())


def machine_info(device: torch.device) -> dict[str, str | int]:
    """All that results depend on besides recipe and data."""
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
        "torch": torch.__version__,
        "heedful": heedful.__version__,
    }


def tokenizer_checksums(tokenizers: tuple[Tokenizer, ...]) -> list[str]:
    return [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers]


def data_checksums(recipe: Recipe) -> dict[str, list[str]]:
    return {name: [content_hash([file]) for file in getattr(recipe.data, name)] for name in SPLIT_NAMES}


def check_data_unchanged(begun: RunManifest, recipe: Recipe) -> None:
    """The files must hold what they held when the run began, wherever they are now."""
    now = data_checksums(recipe)
    for name in SPLIT_NAMES:
        for file, was, there in zip(getattr(recipe.data, name), begun.files[name], now[name], strict=True):
            if was != there:
                raise DataError(f"{file} has changed since the run began: bring it back, or start a new run")


def check_recipe_unchanged(begun: RunManifest, asked: Recipe, folder: Path) -> None:
    """A run is one recipe from beginning to end; all that differs is listed."""
    safe = {*CHANGEABLE_SETTINGS, *MOVABLE_FILES, *(("training.steps",) if asked.training.schedule in OPEN_ENDED_SCHEDULES else ())}
    was, now = flatten_recipe(begun.recipe), flatten_recipe(asked)
    changed = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
    moved = [key for key in changed if key in MOVABLE_FILES and len(was[key]) != len(now[key])]
    if refused := [key for key in changed if key not in safe] + moved:
        listed = "; ".join(f"{key} was {was.get(key)!r} and is now {now.get(key)!r}" for key in refused)
        raise UsageError(
            f"the run in {folder} began with another recipe: {listed}. Start a new run for these; "
            f"safe to change on the way: {', '.join(sorted(safe))}"
        )


def flatten_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as one level of dotted keys."""
    result: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        result |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return result


def machine_differences(begun: RunManifest, device: torch.device) -> str:
    """What is no longer as it was, in words; empty if nothing is."""
    now = machine_info(device)
    return ", ".join(f"{name} {was} → {now[name]}" for name, was in begun.machine.items() if was != now[name])
