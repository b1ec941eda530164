"""heedful classify: texts in, labels out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as about
from heedful.cli.text_io import Notes, answers_to, lines_of, progress
from heedful.cli.training_options import AsJson, Device

if TYPE_CHECKING:
    from heedful.inference.classifier import ClassifiedText


def classify(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    input_: about.Input = None,
    output: about.Output = None,
    as_json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="So many of the likeliest classes of each text.")] = 1,
    on_bad_line: about.SkipBad = "fail",
    device: Device = "auto",
) -> None:
    """Name the class of TEXT, or of each line of standard input or a file, and its probability: one line out for each
    line in. Two texts that are judged together stand on one line with a tab between them."""
    from heedful.generation.streaming import stream_batches

    trained = about.ready(model, "classify", device)
    notes = Notes()
    with progress(input_, output) as watch, answers_to(output) as write:
        lines = lines_of(text, input_, on_bad_line, notes, watch)
        answers = (answer for window in stream_batches(lines) for answer in trained.classified(window))
        for number, answer in enumerate(answers, 1):
            write(json.dumps(answer.to_json(), ensure_ascii=False) if as_json else _plain(answer, top))
            for warning in answer.warnings:
                notes(number, warning)
    notes.close()


def _plain(answer: ClassifiedText, top: int) -> str:
    """Labels with their probabilities, between tabs; where a text may have several, those it has."""
    shown = answer.labels if answer.multi_label and top == 1 else answer.ranking[:top]
    return "\t".join(f"{label.name}\t{label.probability:.4f}" for label in shown)
