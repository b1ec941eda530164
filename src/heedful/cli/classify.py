"""heedful classify: label lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.intervention_options import InterventionFile, Without, read_interventions
from heedful.cli.text_io import LineStream

if TYPE_CHECKING:
    from heedful.inference.classifier import ClassifiedText


def classify(
    model: options.Model,
    text: options.Texts = None,
    input_: options.Input = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    top: Annotated[
        int | None,
        typer.Option(min=1, show_default="1; with --json all", help="Number of classes, most probable first."),
    ] = None,
    without: Without = None,
    interventions: InterventionFile = None,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Print the class of TEXT, or of each line of standard input or a file, and its probability.

    One line out for each line in: classes, each with its probability, separated by tabs. The texts of a pair are
    separated by a tab.

    Examples:
      heedful classify classify-1 "A charming film." "A waste of time."
      heedful classify classify-1 --top 2 --json < reviews.txt
    """
    from heedful import Classifier
    from heedful.loading import load_as

    lines = LineStream(text, input_, output, on_bad_line)
    classifier = load_as(Classifier, model, device=device)
    changes = read_interventions(classifier, without, interventions)
    with lines:
        for result in classifier.iter_classify(lines, interventions=changes):
            lines.write(result.to_json(top) if as_json else plain(result, top), result.warnings)


def plain(result: ClassifiedText, top: int | None) -> str:
    """Tab-separated labels and probabilities: the `top` classes, or those the classifier assigns."""
    labels = result.labels if top is None else result.ranking[:top]
    return "\t".join(f"{label.name}\t{label.probability:.4f}" for label in labels)
