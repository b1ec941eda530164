"""heedful evaluate: score a model on held-out text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.decoding_options import AsJson, BleuTokenizer, Device, LengthPenalty, SkipBad


def evaluate(
    model: Annotated[Path, typer.Argument(help="Model folder, or word2vec file.")],
    files: Annotated[list[Path], typer.Argument(help="Held-out text as for training, or word-vector benchmarks.")],
    beam: Annotated[int, typer.Option(min=1, max=1000, help="Translation: beam size; 1 = greedy search.")] = 4,
    length_penalty: LengthPenalty = 1.0,
    bleu_tokenizer: BleuTokenizer = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            show_default="those of the training, or usual names",
            help="Columns by name or number: en,de or 1,2 or review,stars.",
        ),
    ] = None,
    on_bad_line: SkipBad = "fail",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score MODEL on FILES with its task's metrics.

    Examples:
      heedful evaluate translate-1 test.en test.de
      heedful evaluate classify-1 test.tsv --json

    Translation: BLEU with signature and confidence interval, chrF, exact match, calibration. Language models:
    perplexity, bits per byte. Masked language models: accuracy. Classifiers: accuracy with confidence interval, F1,
    calibration error. Question answering: exact match, F1. Word vectors: analogies, similarity benchmarks.
    """
    from heedful.training.scoring import evaluate as evaluate_files

    scores = evaluate_files(
        model, *files, beam=beam, length_penalty=length_penalty, bleu_tokenizer=bleu_tokenizer or "auto",
        columns=columns or (), on_bad_line=on_bad_line, device=device, show_progress=True,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(scores, ensure_ascii=False))
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
