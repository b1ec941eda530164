"""Every task that can be trained, used and judged; each is one file of this folder, under its own name.

This page is all that knows them by name: commands, recipes and the run ask here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.inference.trained import Trained
    from heedful.training.tasks.task import Task


class Door(NamedTuple):
    """What the command line tells of a task before it is loaded."""

    module: str
    files: str
    """What it is trained on, in a few words."""
    by_twos: bool = False
    """Whether its files come as source and target."""


TASKS = {
    "translate": Door("translation", "two aligned files, or one table", by_twos=True),
    "generate": Door("language_model", "running text"),
    "fill": Door("masked_lm", "running text"),
    "classify": Door("classification", "a table of texts and labels"),
    "answer": Door("question_answering", "questions about passages: SQuAD .json, .jsonl, .csv"),
    "embed": Door("word_embedding", "running text, for word vectors"),
}


def find(name: str) -> Task:
    """The task of that name; torch comes with it, so a command asks only when it needs it."""
    task: Task = import_module(f"{__name__}.{TASKS[name].module}").TASK
    return task


def evaluate(trained: Trained, files: Sequence[str | Path], **options: Any) -> dict[str, Any]:
    """A trained model against held-out files, judged as its task is judged."""
    if trained.task not in TASKS:
        raise UsageError(f"{trained.folder} holds an {trained.model.config.family} without a task: there is no score")
    trained.check(trained.task)
    return find(trained.task).evaluate(trained, [Path(file) for file in files], **options)
