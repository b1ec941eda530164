"""A training request: what the caller specified. Everything it leaves open is chosen in `setup`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.corpus_files import as_columns
from heedful.data.table_layout import file_format, is_table
from heedful.errors import UsageError, nearest
from heedful.training.recipe import apply_overrides, check_keys, merge_settings, read_recipe
from heedful.training.reporting.events import Listener, summary_writer
from heedful.training.tasks import TASKS

ARCHITECTURES = ("transformer", "recurrent")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

FilePath = str | Path
Files = FilePath | Sequence[FilePath]


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """The arguments of `heedful train` and `heedful.train`, checked as far as possible before any text is read."""

    task: str | None = None
    files: Files = ()
    valid: Files = ()
    test: Files = ()
    out: FilePath | None = None
    recipe: FilePath | None = None
    settings: Sequence[str] = ()
    architecture: str = "transformer"
    start_from: FilePath | None = None
    time: str | int | float | None = None
    steps: int | None = None
    seed: int | None = None
    bleu_tokenizer: str | None = None
    device: str = "auto"
    columns: str | Sequence[str | int] = ()
    on_bad_line: str | None = None
    tensorboard: bool = False
    resume: FilePath | None = None
    auto_batch: bool = False
    check_resume: bool = False
    listeners: Sequence[Listener] = ()
    """Called with every event of the run."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise UsageError(f"unknown model '{self.architecture}'; {nearest(self.architecture, ARCHITECTURES)}")
        if self.resume is not None and self.out is not None and Path(self.resume) != Path(self.out):
            raise UsageError(f"--resume {self.resume} and --out {self.out} name two folders; give only --resume DIR")
        if self.tensorboard:
            summary_writer()  # fails at once where TensorBoard is not installed
        _ = self.seconds  # a malformed duration fails at once

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds, if there is one."""
        return None if self.time is None else duration_in_seconds(str(self.time))


def duration_in_seconds(text: str) -> float:
    """Parse "90s", "10m", "1h30m" or plain seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        total = sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    else:
        raise UsageError(f"invalid duration '{text}'; write it as 90s, 10m or 1h30m")
    if total <= 0:
        raise UsageError(f"a duration must be positive, got '{text}'")
    return total


def requested_settings(request: TrainingRequest) -> dict[str, Any]:
    """The part of a recipe that the caller specified, with every key checked."""
    settings = apply_overrides(read_recipe(Path(request.recipe)) if request.recipe else {}, request.settings)
    check_keys(settings)
    files = {"train": request.files, "valid": request.valid, "test": request.test}
    data: dict[str, Any] = {name: resolved(paths) for name, paths in files.items() if paths}
    if columns := as_columns(request.columns):
        data["columns"] = list(columns)
    if request.on_bad_line:
        data["on_bad_line"] = request.on_bad_line
    training = {"steps": request.steps, "bleu_tokenizer": request.bleu_tokenizer}
    training = {name: value for name, value in training.items() if value is not None}
    changes: dict[str, Any] = {
        "task": request.task,
        "seed": request.seed,
        "start_from": resolved(request.start_from)[0] if request.start_from else None,
        "data": data or None,
        "training": training or None,
    }
    settings = merge_settings(settings, {name: value for name, value in changes.items() if value is not None})
    check_held_out_pairs(settings)
    return settings


def resolved(paths: Files) -> list[str]:
    """Absolute paths, of one file or several."""
    return [str(Path(path).resolve()) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def check_held_out_pairs(settings: dict[str, Any]) -> None:
    """Refuse one half of a pair after --valid or --test: the option is repeated for the second file."""
    if settings.get("task") not in TASKS or not TASKS[settings["task"]].paired:
        return
    for name in ("valid", "test"):
        files = settings.get("data", {}).get(name, ())
        if len(files) == 1 and file_format(Path(files[0])) == "lines" and not is_table(Path(files[0])):
            file = Path(files[0]).name
            raise UsageError(
                f"--{name} takes one file at a time; repeat it for the second one: --{name} {file} --{name} FILE"
            )


def new_run_settings(request: TrainingRequest) -> dict[str, Any]:
    """The requested settings of a new run, which has at least a task and training files."""
    settings = requested_settings(request)
    task = settings.get("task")
    if task not in TASKS:
        raise UsageError(f"unknown task '{task}'; {nearest(str(task), TASKS)}")
    if not settings.get("data", {}).get("train"):
        raise UsageError(f"nothing to train on: heedful train {task} FILE …")
    return settings
