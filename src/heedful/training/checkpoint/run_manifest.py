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
from heedful.inference.trained import NOTES, TARGET_TOKENIZER, TOKENIZER
from heedful.models.model_config import ModelConfig
from heedful.text.tokenizer import Tokenizer
from heedful.training.recipe import RECIPE, Recipe, make_recipe

STATE, RUN, LOCK = "training", "run.json", "lock"
FILES = ("train", "valid", "test")
SAFE = ("training.patience", "training.workers", "training.checkpoint_every", "training.keep", "training.shard")
"""Settings that may change on the way: what is past would have been the same with them."""
MOVABLE = tuple(f"data.{name}" for name in FILES)
"""Files may have moved; it is their contents that must not change."""
ENDLESS = ("constant", "inverse_root")
"""Schedules whose past does not depend on where they end."""


@dataclass(frozen=True)
class Begun:
    """A run as it began; `name` is the SHA-256 of its run.json."""

    name: str
    recipe: Recipe
    config: dict[str, Any]
    files: dict[str, list[str]]
    tokenizers: list[str]
    machine: dict[str, str | int]
    forecast: dict[str, Any]

    def require_there(self, folder: Path) -> None:
        """A folder that is moved or deleted while a run trains in it would be made anew, and could not be resumed."""
        for name in (f"{STATE}/{RUN}", *(TOKENIZER, TARGET_TOKENIZER)[: len(self.tokenizers)]):
            if not (folder / name).is_file():
                raise HeedfulError(f"{folder / name} is gone: moved or deleted while the run was training in {folder}")


def note_beginning(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    tokenizers: tuple[Tokenizer, ...],
    device: torch.device,
    forecast: dict[str, Any],
) -> Begun:
    """Write run.json."""
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "files": file_sums(recipe),
        "tokenizers": tokenizer_sums(tokenizers),
        "machine": this_machine(device),
        "forecast": forecast,
    }
    (folder / STATE).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STATE / RUN, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    return read_beginning(folder)


def read_beginning(folder: Path) -> Begun:
    """What run.json says."""
    file = folder / STATE / RUN
    try:
        text = file.read_bytes()
        facts = json.loads(text)
        recipe = make_recipe(facts.pop("recipe"))
        return Begun(hashlib.sha256(text).hexdigest(), recipe, **facts)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {STATE}/{RUN}: it is no run that could be resumed") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, HeedfulError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None


class AnotherIsTrainingError(UsageError):
    """The folder of a run is in use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process is training in {folder}: wait for it, or stop it first")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One process at a time trains in a folder. The lock goes with its process, however that ends; its loaders, which
    may live a moment longer, do not hold it."""
    (folder / STATE).mkdir(parents=True, exist_ok=True)
    with (folder / STATE / LOCK).open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise AnotherIsTrainingError(folder) from None
        except OSError:
            pass  # a file system that knows no locks
        yield


def is_taken(folder: Path) -> bool:
    """Whether a folder holds anything; but what a run leaves that was killed while it was laid out does not count."""
    if not folder.is_dir():
        return folder.exists()
    laid_out = (STATE, TOKENIZER, TARGET_TOKENIZER, NOTES)
    left = {*laid_out, *(f"{name}.tmp" for name in (*laid_out, RECIPE))}
    return any(file.name not in left for file in folder.iterdir())


def this_machine(device: torch.device) -> dict[str, str | int]:
    """All that results depend on besides recipe and data."""
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
        "torch": torch.__version__,
        "heedful": heedful.__version__,
    }


def tokenizer_sums(tokenizers: tuple[Tokenizer, ...]) -> list[str]:
    return [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers]


def file_sums(recipe: Recipe) -> dict[str, list[str]]:
    return {name: [content_hash([file]) for file in getattr(recipe.data, name)] for name in FILES}


def refuse_other_text(begun: Begun, recipe: Recipe) -> None:
    """The files must hold what they held when the run began, wherever they are now."""
    now = file_sums(recipe)
    for name in FILES:
        for file, was, there in zip(getattr(recipe.data, name), begun.files[name], now[name], strict=True):
            if was != there:
                raise DataError(f"{file} has changed since the run began: bring it back, or start a new run")


def refuse_other_recipe(begun: Begun, asked: Recipe, folder: Path) -> None:
    """A run is one recipe from beginning to end; all that differs is listed."""
    safe = {*SAFE, *MOVABLE, *(("training.steps",) if asked.training.schedule in ENDLESS else ())}
    was, now = flat(begun.recipe), flat(asked)
    changed = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
    moved = [key for key in changed if key in MOVABLE and len(was[key]) != len(now[key])]
    if refused := [key for key in changed if key not in safe] + moved:
        listed = "; ".join(f"{key} was {was.get(key)!r} and is now {now.get(key)!r}" for key in refused)
        raise UsageError(
            f"the run in {folder} began with another recipe: {listed}. Start a new run for these; "
            f"safe to change on the way: {', '.join(sorted(safe))}"
        )


def flat(recipe: Recipe) -> dict[str, Any]:
    """The recipe as one level of dotted keys."""
    result: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        result |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return result


def other_machine(begun: Begun, device: torch.device) -> str:
    """What is no longer as it was, in words; empty if nothing is."""
    now = this_machine(device)
    return ", ".join(f"{name} {was} → {now[name]}" for name, was in begun.machine.items() if was != now[name])
