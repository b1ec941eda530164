"""heedful fill: the likeliest words for a gap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as about
from heedful.cli.text_io import Notes, answers_to, lines_of, progress
from heedful.cli.training_options import AsJson, Device
from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.inference.mask_filler import FilledText, MaskFiller


def fill(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts with [MASK] in them; without any, lines of standard input.")
    ] = None,
    input_: about.Input = None,
    output: about.Output = None,
    as_json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="Words for each gap.")] = 5,
    on_bad_line: about.SkipBad = "fail",
    device: Device = "auto",
) -> None:
    """Say which words could stand at each [MASK] of TEXT, or of lines of standard input or a file: one line out for
    each line in, words and probabilities between tabs, and ||| between the words of one gap and the next."""
    if input_ is not None and text:
        raise UsageError(f"texts come from the command line or from --input {input_}: give one or the other")
    trained = about.ready(model, "fill", device)
    filler, notes = trained.filler(top=top), Notes()
    with progress(input_, output) as watch:
        lines = sound(lines_of(text, input_, on_bad_line, notes, watch), filler, on_bad_line, notes)
        with answers_to(output) as write:
            for answer in trained.iter_fill(lines, top=top):
                write(json.dumps(answer.to_json(), ensure_ascii=False) if as_json else plain(answer))
    notes.close()


def sound(lines: Iterable[str | None], filler: MaskFiller, on_bad_line: str, notes: Notes) -> Iterator[str | None]:
    """The lines that can be filled. Of others the first is an error, or each is left empty."""
    number = 0
    for line in lines:
        number += line is not None
        if line is None or not line.strip() or not (trouble := filler.problem(line)):
            yield line
        elif on_bad_line == "fail":
            raise UsageError(f"line {number}: {trouble}")
        else:
            notes(number, f"left empty: {trouble}")
            yield ""


def plain(answer: FilledText) -> str:
    gaps = ("\t".join(f"{word} {probability:.3f}" for word, probability in gap) for gap in answer.guesses)
    return "\t|||\t".join(gaps)
