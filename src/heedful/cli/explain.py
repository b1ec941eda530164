"""heedful explain: attribute an answer to input words, and measure how faithful the attributions are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.intervention_options import INSIDE, InterventionFile, Without, read_interventions
from heedful.cli.standard_streams import print_message, write_output
from heedful.cli.text_io import LineStream
from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.data.progress import StartProgress
    from heedful.inference.trained_model import TrainedModel

option = options.option
VALIDATION_TEXTS = 50
"""Texts of the files of --validation that are measured, evenly spaced."""


def explain(
    model: options.Model,
    text: options.OneText = None,
    word: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Word of the output, or mask, to explain, from 0; default: every one."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Translation, continuation, label or answer to explain; default: its own."),
    ] = None,
    method: Annotated[
        list[str] | None,
        option(INSIDE, metavar="NAME", help="Attribution method; may be repeated; default: all that the model has."),
    ] = None,
    faithfulness: Annotated[bool, option(INSIDE, help="Measure how faithful each method is on this text.")] = True,
    validation: Annotated[
        list[Path] | None,
        option(
            INSIDE,
            metavar="FILE",
            help="Measure the methods on lines of this file too; may be repeated.",
            show_default="what training measured",
        ),
    ] = None,
    out: options.ResultFile = None,
    as_json: options.AsJson = False,
    without: Without = None,
    interventions: InterventionFile = None,
    device: options.Device = "auto",
) -> None:
    """Explain an answer to TEXT: how much each word of the input matters, by several methods, with their faithfulness.

    Words are hidden in the order of a method: the faster the probability falls compared with random orders, the more
    faithful the method. 0 is chance. Fill: a mask counts as an output; answer: the text is question, tab, passage.

    Examples:
      heedful explain translate-1 "A man rides a bicycle." --word 1
      heedful explain translate-1 "A man rides." --out why.html
      heedful explain classify-1 "A charming film." --method occlusion --method integrated-gradients
      heedful explain translate-1 "A man rides." --validation valid.en
    """
    import heedful
    from heedful.inspection.attribution.explanation_text import explanation_lines
    from heedful.inspection.result_file import check_result_file
    from heedful.training.reporting.events import Events, terminal_listener

    if out is not None:
        check_result_file(out)
    trained = heedful.load(model, device=device)
    lines = LineStream(None if text is None else [text], None, None)
    if out is not None and text is None:
        raise UsageError("--out takes one explanation: give the text on the command line")
    changes = read_interventions(trained, without, interventions)
    start_progress = Events(terminal_listener()).stage
    if validation:
        measure_on_files(trained, validation, method, start_progress)
    with lines:
        for line in lines:
            if line is None:
                continue
            result = trained.explain(
                line, target, word=word, methods=method, faithfulness=faithfulness, interventions=changes,
                start_progress=start_progress,
            )  # fmt: skip
            if out is not None:
                result.save(out)
                print_message(f"{out} written")
            if as_json:
                write_output(json.dumps(result.to_json(), ensure_ascii=False) + "\n")
            elif out is None:
                width = shutil.get_terminal_size((100, 24)).columns
                write_output("\n".join(explanation_lines(result, width)) + "\n")


def measure_on_files(
    trained: TrainedModel, files: list[Path], methods: list[str] | None, start_progress: StartProgress
) -> None:
    """Measure the methods on lines of files, evenly spaced, instead of using the measurement of training."""
    from heedful.data.even_sample import EvenSample
    from heedful.data.line_reader import read_lines

    sample: EvenSample[str] = EvenSample(VALIDATION_TEXTS)
    for file in files:
        for _, line in read_lines(file):
            if line.strip():
                sample.add(line.removesuffix("\n"))
    with start_progress("measuring faithfulness", len(sample.items)) as progress:
        trained.measured_faithfulness = trained.faithfulness(sample.items, methods=methods, progress=progress)
