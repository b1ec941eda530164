"""heedful evaluate: how good a trained model is on held-out text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder; or a word2vec file.")],
    files: Annotated[list[Path], typer.Argument(help="Held-out text: as for training; or sets of words.")],
    beam: Annotated[int, typer.Option(min=1, help="Texts kept in mind while translating; 1: greedy.")] = 4,
    length_penalty: Annotated[float, typer.Option(min=0.0, help="0 favours short translations, 1 is neutral.")] = 1.0,
    columns: Annotated[
        str | None, typer.Option(help="Columns of texts and labels, as review,stars; default: the usual names.")
    ] = None,
    on_bad_line: Annotated[
        Literal["fail", "skip"], typer.Option(help="Stop at a line that cannot be read, or leave it out.")
    ] = "fail",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score MODEL on FILES, as its task is scored.

    BLEU with its signature and interval, chrF, exact match; perplexity, bits per byte; hidden words found; accuracy
    with its interval, F1, calibration error; exact match and F1 of answers; analogies, agreement with people.
    """
    from heedful.device import select_device
    from heedful.evaluation.word_vector_benchmarks import evaluate_word_vectors
    from heedful.inference.trained import load_word_vectors
    from heedful.interop.conversion import load
    from heedful.training.reporting.events import Events, terminal_listener
    from heedful.training.tasks import evaluate_model as judge

    if model.is_file():
        scores = evaluate_word_vectors(load_word_vectors(model), files, on_bad_line)
    else:
        trained = load(model, device=select_device(device))
        how: dict[str, Any] = {"on_bad_line": on_bad_line, "start_progress": Events(terminal_listener()).stage}
        if trained.task == "translate":
            how |= {"beam": beam, "length_penalty": length_penalty}
        if columns:
            how["columns"] = tuple(name.strip() for name in columns.split(","))
        scores = judge(trained, files, **how)
    if as_json:
        typer.echo(json.dumps(scores, indent=2))
        return
    plain = {name: value for name, value in scores.items() if not isinstance(value, dict | list)}
    wide = max(map(len, plain))
    for name, value in plain.items():
        typer.echo(f"{name.replace('_', ' '):<{wide}}  {f'{value:.4f}' if isinstance(value, float) else value}")
    for section, found in ((name, part) for value in scores.values() for name, part in sections(value)):
        told = "none asked" if found["accuracy"] is None else f"{found['accuracy']:.4f} of {found['asked']:,}"
        typer.echo(f"  {section:<28} {told}")


def sections(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """The parts of a set of analogies, each with its own accuracy."""
    if not isinstance(value, dict):
        return []
    return [(name, part) for name, part in value.items() if isinstance(part, dict) and {*part} == {"accuracy", "asked"}]
