"""What a caller asks of a training run; everything else is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.errors import UsageError, nearest
from heedful.training.recipe import (
    check_keys,
    merge_settings,
    read_recipe,
    apply_overrides,
)
from heedful.training.reporting.events import summary_writer
from heedful.training.tasks import TASKS

ARCHITECTURES = ("transformer", "recurrent")


@dataclass(frozen=True)
class TrainingRequest:
    """What the caller asked for; what is not said is chosen."""

    task: str | None = None
    files: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    out: str | None = None
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    architecture: str = "transformer"
    start_from: str | None = None
    seconds: float | None = None
    steps: int | None = None
    seed: int | None = None
    device: str = "auto"
    on_bad_line: str | None = None
    tensorboard: bool = False
    resume: str | None = None
    auto_batch: bool = False
    check_resume: bool = False


def requested_settings(wish: TrainingRequest) -> dict[str, Any]:
    """The part of a recipe that the caller decided, with every key checked."""
    if wish.architecture not in ARCHITECTURES:
        raise UsageError(f"unknown model '{wish.architecture}'; {nearest(wish.architecture, ARCHITECTURES)}")
    if wish.tensorboard:
        summary_writer()  # better refused now than after the text was read
    settings = apply_overrides(read_recipe(Path(wish.recipe)) if wish.recipe else {}, list(wish.settings))
    check_keys(settings)
    given = {"train": wish.files, "valid": wish.valid, "test": wish.test}
    data: dict[str, Any] = {
        name: [str(Path(file).resolve()) for file in files] for name, files in given.items() if files
    }
    if wish.on_bad_line:
        data["on_bad_line"] = wish.on_bad_line
    changes: dict[str, Any] = {"data": data} if data else {}
    if wish.task is not None:
        changes["task"] = wish.task
    if wish.seed is not None:
        changes["seed"] = wish.seed
    if wish.start_from:
        changes["start_from"] = str(Path(wish.start_from).resolve())
    if wish.steps is not None:
        changes["training"] = {"steps": wish.steps}
    return merge_settings(settings, changes)


def new_run_settings(wish: TrainingRequest) -> dict[str, Any]:
    """The recipe as far as the caller decided it: a task and some text at least."""
    settings = requested_settings(wish)
    task = settings.get("task")
    if task not in TASKS:
        raise UsageError(f"unknown task '{task}'; {nearest(str(task), TASKS)}")
    if not settings.get("data", {}).get("train"):
        raise UsageError(f"nothing to train on: heedful train {task} FILE …")
    return settings
