"""heedful evaluate: score a model on held-out text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.decoding_options import AsJson, Device, LengthPenalty, SkipBad


def evaluate(
    model: Annotated[Path, typer.Argument(help="Model folder, or word2vec file.")],
    files: Annotated[list[Path], typer.Argument(help="Held-out text as for training, or word-vector benchmarks.")],
    beam: Annotated[int, typer.Option(min=1, help="Translation: beam size; 1 = greedy search.")] = 4,
    length_penalty: LengthPenalty = 1.0,
    columns: Annotated[
        str | None, typer.Option(help="Text and label columns, as review,stars.  [default: by their names]")
    ] = None,
    on_bad_line: SkipBad = "fail",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score MODEL on FILES with its task's metrics.

    Translation: BLEU with signature and confidence interval, chrF, exact match, calibration. Language models:
    perplexity, bits per byte. Masked language models: accuracy. Classifiers: accuracy with confidence interval, F1,
    calibration error. Question answering: exact match, F1. Word vectors: analogies, similarity benchmarks.
    """
    from heedful.evaluation.word_vector_benchmarks import evaluate_word_vectors
    from heedful.loading import load, load_word_vectors
    from heedful.training.reporting.events import Events, terminal_listener
    from heedful.training.tasks import EvaluationOptions, evaluate_model

    if model.is_file():
        scores = evaluate_word_vectors(load_word_vectors(model), files, on_bad_line)
    else:
        names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
        progress = Events(terminal_listener()).stage
        options = EvaluationOptions(names, on_bad_line, beam, length_penalty, progress)
        scores = evaluate_model(load(model, device=device), files, options)
    if as_json:
        typer.echo(json.dumps(scores, indent=2))
        return
    plain = {name: value for name, value in scores.items() if not isinstance(value, dict | list)}
    width = max(map(len, plain))
    for name, value in plain.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {f'{value:.4f}' if isinstance(value, float) else value}")
    for score, sections in scores.items():
        if score.endswith("_sections"):  # of an analogy benchmark
            for name, part in sections.items():
                accuracy, count = part["accuracy"], part["questions"]
                typer.echo(f"  {name:<28} {'no questions' if accuracy is None else f'{accuracy:.4f} of {count:,}'}")
