"""heedful fill: predict masked words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.intervention_options import InterventionFile, Without, read_interventions
from heedful.cli.text_io import LineStream
from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.inference.mask_filler import FilledText, MaskFiller


def fill(
    model: options.Model,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts with [MASK]; default: lines of standard input."),
    ] = None,
    input_: options.Input = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="Words per mask.")] = 5,
    without: Without = None,
    interventions: InterventionFile = None,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Predict the words at each [MASK] of TEXT, or of lines of standard input or a file.

    One line out for each line in: words, each with its probability, separated by tabs; ||| between masks.

    Examples:
      heedful fill fill-1 "The [MASK] is green." --top 3
    """
    from heedful import MaskFiller
    from heedful.loading import load_as

    lines = LineStream(text, input_, output, on_bad_line)
    filler = load_as(MaskFiller, model, device=device)
    changes = read_interventions(filler, without, interventions)
    with lines:
        for result in filler.iter_fill(fillable(lines, filler), top=top, interventions=changes):
            lines.write(result.to_json() if as_json else plain(result))


def fillable(lines: LineStream, filler: MaskFiller) -> Iterator[str | None]:
    """The lines; one that cannot be filled is an error, or left empty."""
    number = 0
    for line in lines:
        number += line is not None
        if line is None or not line.strip() or not (problem := filler.problem(line)):
            yield line
        elif lines.on_bad_line == "fail":
            raise UsageError(f"line {number}: {problem}")
        else:
            lines.warn(number, f"left empty: {problem}")
            yield ""


def plain(result: FilledText) -> str:
    masks = ("\t".join(f"{word}\t{probability:.4f}" for word, probability in mask) for mask in result.guesses)
    return "\t|||\t".join(masks)
