"""Corrected pairs, and the training text that teaches a model these without forgetting the others."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from heedful.data.batching import evenly_spaced
from heedful.inference.trained_model import TrainedModel
from heedful.studio.recorded_texts import recorded_files
from heedful.training.census_files import census_examples

REPLAYED, REPEATS = 600, 10
"""Pairs of the training text that are repeated beside the corrections, and the copies of each correction."""
Pair = tuple[str, str]


def add_correction(file: Path, source: str, target: str) -> int:
    """Append a pair; returns the number of pairs in the file."""
    with file.open("a", encoding="utf-8", newline="") as rows:
        csv.writer(rows, delimiter="\t", lineterminator="\n").writerow(_one_line(source, target))
    return len(read_corrections(file))


def read_corrections(file: Path) -> list[Pair]:
    """The corrected pairs of a file."""
    with file.open(encoding="utf-8", newline="") as rows:
        return [(row[0], row[1]) for row in csv.reader(rows, delimiter="\t") if len(row) == 2]


def fine_tuning_arguments(trained: TrainedModel, corrections: Sequence[Pair], file: Path) -> list[str]:
    """Write the pairs to learn into `file`; the arguments of `heedful train` that fine-tune the model on it.

    Scores stay comparable: where the model's validation files are on this disk, they are used again.
    """
    training, columns = recorded_files(trained.folder, "train")
    examples = list(census_examples(trained, training, columns, "skip")) if training else []
    replayed = [examples[index] for index in evenly_spaced(len(examples), REPLAYED)]
    with file.open("w", encoding="utf-8", newline="") as rows:
        csv.writer(rows, delimiter="\t", lineterminator="\n").writerows(
            _one_line(*pair) for pair in (*replayed, *(pair for pair in corrections for _ in range(REPEATS)))
        )
    valid, columns = recorded_files(trained.folder, "valid")
    chosen = valid if valid and not columns else [file]
    arguments = [trained.task, str(file), "--from", str(trained.folder)]
    return [*arguments, *(part for path in chosen for part in ("--valid", str(path)))]


def _one_line(*texts: str) -> list[str]:
    return [" ".join(text.split()) for text in texts]
