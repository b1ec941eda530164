"""`heedful.evaluate`: the scores of a model on held-out files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from heedful.data.corpus_files import as_columns
from heedful.data.line_reader import OnBadLine
from heedful.errors import UsageError
from heedful.evaluation.word_vector_benchmarks import evaluate_word_vectors
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load, load_word_vectors
from heedful.syntax import argument
from heedful.training.reporting.display import progress_listeners
from heedful.training.reporting.events import Events, Listener
from heedful.training.request import FilePath, own_argument
from heedful.training.tasks import EvaluationOptions, evaluate_model


def evaluate(
    model: TrainedModel | FilePath,
    *files: FilePath,
    beam: int = 4,
    length_penalty: float = 1.0,
    bleu_tokenizer: str = "auto",
    columns: str | Sequence[str | int] = (),
    on_bad_line: OnBadLine = "fail",
    by_length: bool = False,
    by_position: bool = False,
    context: int | None = None,
    device: str = "auto",
    show_progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Score a model on held-out files with its task's metrics: `heedful.evaluate("translate-1", "test.en", "test.de")`.

    `model` is a folder, a loaded model, or a word2vec file; the files are read as for training, for word vectors they
    are benchmarks. `beam`, `length_penalty` and `bleu_tokenizer` ("auto": by the script of the references) are for
    translation, `columns` for tables. `by_length` also scores translations or classified texts of similar length,
    `by_position` gives the loss of a translator or language model by position; `context` is the number of tokens that a
    language model reads at once, which may be more than in training. `show_progress` is as in `heedful.train`.
    """
    if not files:
        raise UsageError("nothing to evaluate on: name the held-out files")
    if on_bad_line not in get_args(OnBadLine):
        raise UsageError(f"on_bad_line is {' or '.join(get_args(OnBadLine))}, got {on_bad_line!r:.60}")
    if not isinstance(model, TrainedModel | str | os.PathLike):
        raise UsageError(f"model is a folder or a loaded model, got {model!r:.60}")
    for file in files:
        if not isinstance(file, str | os.PathLike):
            raise UsageError(f"files takes a path, got {file!r:.60}{own_argument(file)}")
    paths = [Path(file) for file in files]
    if not isinstance(model, TrainedModel) and Path(model).is_file():
        if columns:
            raise UsageError(f"benchmarks of word vectors have no columns to choose; leave out {argument('columns')}")
        return evaluate_word_vectors(load_word_vectors(Path(model)), paths, on_bad_line)
    options = EvaluationOptions(
        columns=as_columns(columns),
        on_bad_line=on_bad_line,
        beam=beam,
        length_penalty=length_penalty,
        bleu_tokenizer=bleu_tokenizer,
        by_length=by_length,
        by_position=by_position,
        context=context,
        start_progress=Events(*progress_listeners(show_progress), *listeners).stage,
    )
    trained = model if isinstance(model, TrainedModel) else load(model, device=device)
    for name in ("beam", "length_penalty", "bleu_tokenizer") if trained.task != "translate" else ():
        if getattr(options, name) != getattr(EvaluationOptions, name):
            raise UsageError(f"{argument(name)} is for translators, not for {trained.task}")
    return evaluate_model(trained, paths, options)
