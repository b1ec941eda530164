"""The validation text recorded in a model folder: example inputs, and the files it was read from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from heedful.training.run_catalog import LOG_FILE, RECIPE_FILE

MAX_LOG, MAX_EXAMPLES, MAX_LENGTH = 50_000_000, 4, 200


def example_texts(folder: Path | None) -> list[str]:
    """The inputs of the samples in the last line of a run's log; none for a model that was not trained here."""
    if folder is None:
        return []
    try:
        log = folder / LOG_FILE
        if log.stat().st_size > MAX_LOG:
            return []
        lines = log.read_text(encoding="utf-8").splitlines()
        done: dict[str, Any] = json.loads(lines[-1])
        samples = [str(sample[0]) for sample in done.get("samples", ())]
    except (OSError, ValueError, IndexError, TypeError, AttributeError):
        return []
    return [text for text in samples if 0 < len(text) <= MAX_LENGTH][:MAX_EXAMPLES]


def validation_files(folder: Path | None) -> tuple[list[Path], tuple[str, ...]]:
    """The validation files of a run, or else its training files, with their columns; none if they are gone."""
    files, columns = recorded_files(folder, "valid")
    return (files, columns) if files else recorded_files(folder, "train")


def recorded_files(folder: Path | None, name: Literal["train", "valid"]) -> tuple[list[Path], tuple[str, ...]]:
    """The files that a run's recipe names, with the columns that were read; none if one of them is gone."""
    if folder is None:
        return [], ()
    try:
        data = tomllib.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))["data"]
        names = data.get(name)
        files = [(folder / file_name).resolve() for file_name in names] if isinstance(names, list) else []
        columns = tuple(data.get("columns") or ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [], ()
    return (files, columns) if all(file.is_file() for file in files) else ([], ())
