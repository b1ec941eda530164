"""The runs in a folder: task, data, scores and date, read from recipes and logs without importing torch."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

RECIPE_FILE = "recipe.toml"
"""The recipe: every setting of the run."""
LOG_FILE = "metrics.jsonl"
"""Events of the run, one JSON object a line."""


@dataclass(frozen=True)
class RunSummary:
    """A run on disk."""

    folder: str
    task: str
    state: Literal["finished", "unfinished"]
    date: str
    """When it finished, or when its log was last written, as 2026-01-31T12:00."""
    data: tuple[str, ...]
    """Names of the training files."""
    examples: int | None
    """Training examples."""
    parameters: int | None
    steps: int
    """Steps done."""
    result: str
    """The main scores in one line, or how far an unfinished run is."""
    scores: dict[str, Any] = field(default_factory=dict)
    is_useful: bool | None = None
    """The verdict; None before there is one."""
    checksums: dict[str, list[str]] = field(default_factory=dict)
    """SHA-256 of the training, validation and test files."""


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in a folder, itself included, from the oldest to the newest."""
    try:
        candidates = [folder, *sorted(folder.iterdir())]
    except OSError:  # not a folder, or not readable
        return []
    runs = map(read_run, candidates)
    return sorted((run for run in runs if run is not None), key=lambda run: run.date)


def previous_run(folder: Path, task: str, checksums: Mapping[str, list[str]]) -> RunSummary | None:
    """The newest finished run beside `folder` of this task with the same training, validation and test files."""
    runs = [
        run
        for run in list_runs(folder.absolute().parent)
        if run.state == "finished" and run.task == task and run.checksums == checksums
    ]
    return next((run for run in reversed(runs) if Path(run.folder).name != folder.name), None)


def read_run(folder: Path) -> RunSummary | None:
    """Summarize the run in a folder; None if it has none, or its recipe or log is damaged or not readable."""
    try:
        if not (folder / RECIPE_FILE).is_file() or not (folder / LOG_FILE).is_file():
            return None
        recipe = tomllib.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
        events = {event["kind"]: event for event in read_events(folder / LOG_FILE)}
        written = datetime.fromtimestamp((folder / LOG_FILE).stat().st_mtime)
        done, steps = events.get("done"), recipe["training"]["steps"]
        step = max((event.get("step", 0) for event in events.values()), default=0)
        described = (done or {}).get("data", {})
        return RunSummary(
            folder=str(folder),
            task=recipe["task"],
            state="finished" if done else "unfinished",
            date=(done or {}).get("date") or written.isoformat(timespec="minutes"),
            data=tuple(Path(file).name for file in recipe["data"]["train"]),
            examples=described.get("examples"),
            parameters=sum(events.get("ready", {}).get("parameters", {}).values()) or None,
            steps=step,
            result=(done or {}).get("headline") or ("finished" if done else f"step {step:,} of {steps:,}"),
            scores=(done or {}).get("scores", {}),
            is_useful=(done or {}).get("verdict", {}).get("is_useful"),
            checksums=described.get("checksums", {}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_events(file: Path) -> Iterator[dict[str, Any]]:
    """The events of a log; an incomplete last line is left out."""
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.endswith("}\n"))
