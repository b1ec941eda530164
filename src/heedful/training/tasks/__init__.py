"""The registry of tasks: what can be trained, used and evaluated. Each task is one module of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.data.line_reader import OnBadLine
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.inference.trained_model import TrainedModel
    from heedful.training.tasks.task import Task


class TaskEntry(NamedTuple):
    """A task as the command line knows it before importing it (which imports torch)."""

    module: str
    model: str
    """The kind of model that is trained."""
    files: str
    """The formats of its training files."""
    example: tuple[str, ...]
    """Names of training files in examples."""
    use: tuple[str, ...]
    """The words after `heedful` that use a trained model, in examples."""
    paired: bool = False
    """Whether its text comes as two aligned files, source and target."""


TASKS = {
    "translate": TaskEntry(
        "translation",
        "a translator",
        "two line-aligned files, or one table of pairs",
        ("train.en", "train.de"),
        ("translate", "translate-1", "A man rides a bicycle."),
        paired=True,
    ),
    "generate": TaskEntry(
        "language_model",
        "a language model",
        "running text",
        ("book.txt",),
        ("generate", "generate-1", "Once upon a time"),
    ),
    "fill": TaskEntry(
        "masked_lm",
        "a masked language model",
        "running text",
        ("book.txt",),
        ("fill", "fill-1", "The [MASK] is green."),
    ),
    "classify": TaskEntry(
        "classification",
        "a classifier",
        "a table of texts and labels",
        ("reviews.tsv",),
        ("classify", "classify-1", "A charming film."),
    ),
    "answer": TaskEntry(
        "question_answering",
        "a question answerer",
        "questions about passages: SQuAD .json, .jsonl, .csv",
        ("questions.json",),
        ("answer", "answer-1", "--question", "Who wrote it?", "--passage-file", "page.txt"),
    ),
    "embed": TaskEntry(
        "word_embedding",
        "word vectors",
        "running text",
        ("book.txt",),
        ("similar", "embed-1", "king"),
    ),
}


def get_task(name: str) -> Task:
    """Import the task of this name."""
    task: Task = import_module(f"{__name__}.{TASKS[name].module}").TASK
    return task


@dataclass(frozen=True)
class EvaluationOptions:
    """How held-out files are read and decoded; a task uses the options that apply to it."""

    columns: Sequence[str] = ()
    """Names or numbers of the columns that are read; empty: those the model was trained on, or the usual ones."""
    on_bad_line: OnBadLine = "fail"
    beam: int = 4
    length_penalty: float = 1.0
    bleu_tokenizer: str = "auto"
    by_length: bool = False
    """Also score texts of similar length."""
    by_position: bool = False
    """Also average the loss over ranges of positions."""
    context: int | None = None
    """Context length in tokens of a language model; None: the trained one."""
    share: float = 1.0
    """Share of a validation split to score, evenly spaced."""
    start_progress: StartProgress = no_progress


def evaluate_model(
    trained: TrainedModel, files: Sequence[str | Path], options: EvaluationOptions | None = None
) -> dict[str, Any]:
    """Score a model on held-out files with its task's metrics, and "warnings" if something makes them doubtful."""
    if trained.task not in TASKS:
        raise UsageError(f"{trained.folder} holds an {trained.model.config.family} without a task: there is no score")
    from heedful.data.corpus_readers import has_columns, require_columns  # which imports numpy
    from heedful.data.training_text import TrainingText  # which imports pydantic

    trained.require_tokenizer()
    task, paths, options = get_task(trained.task), [Path(file) for file in files], options or EvaluationOptions()
    text = trained.training_text or TrainingText()
    if options.columns:
        require_columns(paths, options.columns)
    elif trained.task != "embed" and has_columns(paths, text.columns):
        options = replace(options, columns=text.columns)
    task.check_details(options)
    warnings = list(text.warnings(paths))
    scores = task.evaluate_files(trained, paths, options)
    warnings += scores.get("warnings", ())
    return {**scores, "warnings": warnings} if warnings else scores
