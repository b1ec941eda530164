"""A training request: what the caller specified. Everything it leaves open is chosen in `setup`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from time import monotonic
from typing import Any

from heedful.data.corpus_files import as_columns
from heedful.data.table_layout import file_format, is_table
from heedful.errors import UsageError, nearest
from heedful.syntax import argument, call
from heedful.training.recipe import read_recipe
from heedful.training.reporting.events import Events, Listener, summary_writer
from heedful.training.requested_settings import Settings, apply_settings, check_keys, merge_settings
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
    settings: Settings = ()
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
    start: float = field(default_factory=monotonic)
    """When the time limit began to run: at the call, or at the start of the command's process."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.architecture not in ARCHITECTURES:
            raise UsageError(f"unknown model '{self.architecture}'; {nearest(self.architecture, ARCHITECTURES)}")
        if self.resume is not None and self.out is not None and Path(self.resume) != Path(self.out):
            resume, out = argument("resume", self.resume), argument("out", self.out)
            raise UsageError(f"{resume} and {out} name two folders; give only {resume}")
        if self.time is not None and self.steps is not None:
            time, steps = argument("time", self.time), argument("steps", self.steps)
            raise UsageError(f"{time} and {steps} both set the length of training; give one of them")
        if self.tensorboard:
            summary_writer()  # fails at once where TensorBoard is not installed
        _ = self.seconds  # a malformed duration fails at once

    def _check_types(self) -> None:
        paths = {name: path_list(getattr(self, name)) for name in ("files", "valid", "test")}
        for name in ("out", "recipe", "start_from", "resume"):
            paths[name] = path_list(() if getattr(self, name) is None else getattr(self, name))
        for name, values in paths.items():
            for value in values:
                if not isinstance(value, FilePath):
                    raise UsageError(f"{argument(name)} takes a path, got {value!r:.60}{own_argument(value)}")
        for name, least in (("steps", 1), ("seed", 0)):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, Integral) or number < least):
                raise UsageError(f"{argument(name)} must be an integer of at least {least}, got {number!r:.60}")

    def events(self) -> Events:
        """The events of the run, timed from its start."""
        return Events(*self.listeners, start=self.start)

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
    settings = apply_settings(read_recipe(Path(request.recipe)) if request.recipe else {}, request.settings)
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
    check_paths(settings)
    if derived := {"vocabulary", "target_vocabulary"} & {*settings.get("model", {})}:
        raise UsageError(f"model.{min(derived)} follows from the tokenizer: set tokenizer.vocabulary instead")
    check_held_out_pairs(settings)
    return settings


def check_paths(settings: dict[str, Any]) -> None:
    """Raise UsageError for a setting of file paths that holds anything else."""
    named = {f"data.{name}": settings.get("data", {}).get(name, ()) for name in ("train", "valid", "test")}
    start = {"start_from": settings["start_from"]} if settings.get("start_from") is not None else {}
    for name, value in {**named, **start}.items():
        if not all(isinstance(path, str) and path for path in path_list(value)):
            raise UsageError(f"{name} takes paths of files, got {value!r:.60}")


def resolved(paths: Files) -> list[str]:
    """Absolute paths, of one file or several."""
    return [str(Path(path).resolve()) for path in path_list(paths)]


def path_list(paths: Files) -> Sequence[FilePath]:
    """One path or several, as a list."""
    return paths if isinstance(paths, list | tuple) else [paths]  # type: ignore[list-item]


def own_argument(value: object) -> str:
    """What to do with a list in the place of a path."""
    return ": give each path as an argument of its own" if isinstance(value, list | tuple) else ""


def check_held_out_pairs(settings: dict[str, Any]) -> None:
    """Refuse one half of a pair as validation or test text."""
    if settings.get("task") not in TASKS or not TASKS[settings["task"]].paired:
        return
    for name in ("valid", "test"):
        files = settings.get("data", {}).get(name, ())
        if len(files) == 1 and file_format(Path(files[0])) == "lines" and not is_table(Path(files[0])):
            file = Path(files[0]).name
            raise UsageError(f"a pair is two files, got only {file}: write {argument(name, [file, 'FILE'])}")


def new_run_settings(request: TrainingRequest) -> dict[str, Any]:
    """The requested settings of a new run, which has at least a task and training files."""
    settings = requested_settings(request)
    task = settings.get("task")
    if task is None:
        raise UsageError(f"name a task and its text, for example:\n{task_examples()}")
    if task not in TASKS:
        raise unknown_task(str(task))
    if not settings.get("data", {}).get("train"):
        example = call("train", task, *TASKS[task].example)
        raise UsageError(f"nothing to train on; {task} takes {TASKS[task].files}: {example}")
    return settings


def unknown_task(task: str) -> UsageError:
    """The error for an unknown task; for a file, that the task comes before it."""
    if Path(task).suffix or Path(task).exists():
        hint = f"the task comes before the files, as in {call('train', 'generate', task)}; tasks: {', '.join(TASKS)}"
    else:
        hint = nearest(task, TASKS)
    return UsageError(f"unknown task '{task}'; {hint}")


def task_examples() -> str:
    """The command of each task and the text it takes, one task a line."""
    calls = {call("train", name, *task.example): task.files for name, task in TASKS.items()}
    width = max(map(len, calls))
    return "\n".join(f"  {example:<{width}}   {files}" for example, files in calls.items())
