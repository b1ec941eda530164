"""heedful evaluate: score a model on held-out text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.decoding_options import AsJson, BleuTokenizer, Device, LengthPenalty, SkipBad
from heedful.cli.standard_streams import print_message

DETAILS = {"by_length": ("shortest", "longest", "texts"), "by_position": ("first", "last", "tokens")}
"""Tables of scores by part of a text, and the columns that identify the part."""


def score_tables(scores: dict[str, Any]) -> Iterator[str]:
    """The lines of tables by length and by position: each score with its 95% confidence interval."""
    for detail, (first, last, number) in DETAILS.items():
        rows = scores.get(detail, ())
        if not rows:
            continue
        names = [name for name in rows[0] if f"{name}_low" in rows[0]]
        part = rows[0].get("unit", "positions")
        yield ""
        yield f"{part:>13} {number:>9}" + "".join(f"   {name.replace('_', ' '):<24}" for name in names).rstrip()
        for row in rows:
            figures = [f"{row[name]:8.3f} ({row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f})" for name in names]
            part = str(row[first]) if row[first] == row[last] else f"{row[first]} to {row[last]}"
            yield f"{part:>13} {row[number]:>9,} " + "".join(f"{figure:<27}" for figure in figures).rstrip()


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, or word2vec file.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Held-out text as for training, or word-vector benchmarks.")
    ],
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
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Translation, classification: also score texts of similar length.")
    ] = False,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Translation, language models: also the loss by position.")
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=1_000_000,
            metavar="TOKENS",
            show_default="as in training",
            help="Language models: tokens read at once, also more than in training.",
        ),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score MODEL on FILES with its task's metrics.

    Examples:
      heedful evaluate translate-1 test.en test.de
      heedful evaluate classify-1 test.tsv --json
      heedful evaluate generate-1 book.txt --by-position --context 512

    Metrics:
      translation              BLEU with interval, chrF, exact match, calibration
      language models          perplexity, bits per byte
      masked language models   accuracy, perplexity
      classification           accuracy with interval, F1, calibration error
      question answering       exact match, F1
      word vectors             analogies, similarity benchmarks
    """
    from heedful.training.scoring import evaluate as evaluate_files

    scores = evaluate_files(
        model, *files, beam=beam, length_penalty=length_penalty, bleu_tokenizer=bleu_tokenizer or "auto",
        columns=columns or (), on_bad_line=on_bad_line, by_length=by_length, by_position=by_position,
        context=context, device=device, show_progress=True,
    )  # fmt: skip
    for warning in scores.get("warnings", ()):
        print_message(warning)
    if as_json:
        typer.echo(json.dumps(scores, ensure_ascii=False))
        return
    plain = {name: value for name, value in scores.items() if not isinstance(value, dict | list)}
    width = max(map(len, plain))
    for name, value in plain.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {f'{value:.4f}' if isinstance(value, float) else value}")
    for line in score_tables(scores):
        typer.echo(line)
    for score, sections in scores.items():
        if score.endswith("_sections"):  # of an analogy benchmark
            for name, part in sections.items():
                accuracy, count = part["accuracy"], part["questions"]
                typer.echo(f"  {name:<28} {'no questions' if accuracy is None else f'{accuracy:.4f} of {count:,}'}")
