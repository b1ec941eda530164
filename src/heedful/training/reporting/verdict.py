"""The verdict on a finished run: whether the model is useful, if not why, and the next command to type."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.dataset import PreparedData
from heedful.quantities import format_duration
from heedful.training.recipe import Recipe
from heedful.training.run_catalog import RECIPE_FILE, RunSummary
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun
from heedful.training.tasks import get_task
from heedful.training.tasks.task import Task

FALLING = 0.98
"""A loss is still falling if it ends below this share of its value at two thirds of the run."""
RISING = 1.05
"""A model memorizes its text if the validation loss ends above this multiple of its minimum."""
FEW_EPOCHS = 3.0
MORE_STEPS = 5
"""How many times as many steps are recommended to a run that was too short."""
STRONG_DROPOUT = 0.3


@dataclass(frozen=True)
class Verdict:
    """Whether a model is useful, the reasons, and the recommended next command."""

    is_useful: bool
    finding: str
    """Summary of the scores, compared with baselines."""
    reasons: tuple[str, ...] = ()
    next_command: str = ""
    next_seconds: float = 0.0
    """Forecast for the next command, from its start to its report; 0: no training."""

    def sentence(self) -> str:
        """The verdict without the command, which depends on the current folder."""
        because = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.finding[:1].upper()}{self.finding[1:]}{because}."

    def lines(self) -> list[str]:
        """The verdict as lines of the log."""
        duration = f"   (about {format_duration(self.next_seconds)})" if self.next_seconds else ""
        return [
            f"verdict    {self.finding}",
            *([f"because    {'; '.join(self.reasons)}"] if self.reasons else []),
            *([f"next       {self.next_command}{duration}"] if self.next_command else []),
        ]


@dataclass(frozen=True)
class TrainingCourse:
    """The length, losses and timing of a finished run."""

    steps: int
    epochs: float
    losses: tuple[float, ...]
    """Validation losses, in the order of the evaluations."""
    seconds_per_step: float
    """Average duration of a step, evaluations included."""
    other_seconds: float = 0.0
    """Duration of the phases before and after training, if all texts are scored."""

    @classmethod
    def of_run(cls, prepared: PreparedRun, progress: RunProgress, final_seconds: float) -> TrainingCourse:
        epochs = progress.tokens / max(1, prepared.training_components().train.labels_per_epoch)
        losses = tuple(row["valid_loss"] for row in progress.history if "valid_loss" in row)
        expected = prepared.forecast
        other_seconds = sum(expected.setup_phases.values()) + final_seconds
        return cls(progress.step, epochs, losses, expected.training_seconds(1), other_seconds)

    def seconds(self, steps: int) -> float:
        """Forecast for another run of `steps` steps, from its command to its report."""
        return steps * self.seconds_per_step + self.other_seconds


def judge_run(
    recipe: Recipe,
    data: PreparedData,
    course: TrainingCourse,
    scores: dict[str, Any],
    folder: Path,
    previous: RunSummary | None = None,
) -> Verdict:
    """Judge a run by its scores, the course of its loss and the size of its text."""
    task = get_task(recipe.task)
    falling, rising, scarce = is_falling(course.losses), is_rising(course.losses), task.scarcity(data)
    reasons = (
        *([describe_epochs(course.epochs)] if course.epochs < FEW_EPOCHS else []),
        *(["the loss was still falling"] if falling else []),
        *(["the validation loss rose again: the model memorizes its text"] if rising else []),
        *([scarce] if scarce else []),
    )
    weaknesses = task.weaknesses(scores)
    if not weaknesses:
        finding = "; ".join(comparisons(task, scores, previous))
        return Verdict(True, finding, reasons, *more_steps(course, folder)) if falling else Verdict(True, finding)
    finding = f"not usable: {'; '.join(weaknesses)}"
    if falling or course.epochs < FEW_EPOCHS:
        return Verdict(False, finding, reasons, *more_steps(course, folder))
    if (rising or scarce) and recipe.model.get("dropout", 1.0) < STRONG_DROPOUT:
        return Verdict(False, finding, reasons, *more_dropout(course, folder))
    unexplained = ("the loss has stopped falling: the text may be misaligned or mislabeled",)
    return Verdict(False, finding, reasons or unexplained, doctor_command(recipe))


def describe_epochs(epochs: float) -> str:
    return f"{epochs:.1f} epochs of training" if epochs >= 0.05 else "less than a tenth of an epoch of training"


def is_falling(losses: Sequence[float]) -> bool:
    """Whether the loss ends clearly below its value at two thirds of the run, or the evaluation before."""
    return len(losses) > 1 and losses[-1] < FALLING * losses[max(0, 2 * len(losses) // 3 - 1)]


def is_rising(losses: Sequence[float]) -> bool:
    """Whether the loss ends clearly above its minimum."""
    return bool(losses) and losses[-1] > RISING * min(losses)


def comparisons(task: Task, scores: dict[str, Any], previous: RunSummary | None) -> list[str]:
    """Lines that compare the main score with baselines and with the previous run on the same data.

    Without a main score, the baselines alone.
    """
    main = task.main_score
    if main is None:
        return task.baselines(scores)
    compared = [main.formatted(scores[main.key]), *task.baselines(scores)]
    if previous is not None and main.key in previous.scores:
        before, name = previous.scores[main.key], Path(previous.folder).name
        gain = (scores[main.key] - before) * (1 if main.higher_is_better else -1)
        change = "better than" if gain > 0 else "worse than" if gain < 0 else "as good as"
        compared.append(f"{change} {name} on the same data: {main.formatted(before)}")
    return compared


def more_steps(course: TrainingCourse, folder: Path) -> tuple[str, float]:
    """The command that trains for longer, at least a few epochs, and its forecast in seconds."""
    wanted = course.steps * max(MORE_STEPS, FEW_EPOCHS / max(course.epochs, 1e-3))
    magnitude = 10 ** max(0, math.floor(math.log10(wanted)) - 1)
    count = magnitude * math.ceil(wanted / magnitude)
    command = ["heedful", "train", "--recipe", str(folder / RECIPE_FILE), "--steps", str(count)]
    return shlex.join(command), course.seconds(count)


def more_dropout(course: TrainingCourse, folder: Path) -> tuple[str, float]:
    """The command that trains again with more dropout, and its forecast in seconds."""
    command = ["heedful", "train", "--recipe", str(folder / RECIPE_FILE), "--set", f"model.dropout={STRONG_DROPOUT}"]
    return shlex.join(command), course.seconds(course.steps)


def doctor_command(recipe: Recipe) -> str:
    """The command that examines the training text."""
    files = [os.path.relpath(file) for file in recipe.data.train]
    columns = ["--columns", ",".join(recipe.data.columns)] if recipe.data.columns else []
    return shlex.join(["heedful", "doctor", *files, "--as", get_task(recipe.task).corpus_kind, *columns])
