"""heedful embed: a vector for a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as about
from heedful.cli.text_io import Notes, answers_to, lines_of, progress
from heedful.cli.training_options import AsJson, Device

if TYPE_CHECKING:
    from heedful.inference.embedder import TextEmbedding


def embed(
    model: Annotated[Path, typer.Argument(help="A model folder: any encoder, translator, language model or vectors.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of standard input.")] = None,
    input_: about.Input = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the vectors here: .npy (one array), or lines of text.")
    ] = None,
    as_json: AsJson = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print cosines instead: of the first text with each of the others.")
    ] = False,
    normalise: Annotated[bool, typer.Option("--normalise", help="Vectors of length 1.")] = False,
    on_bad_line: about.SkipBad = "fail",
    device: Device = "auto",
) -> None:
    """Give each TEXT a vector, the mean of what MODEL makes of its tokens; with --compare say how alike texts are."""
    from heedful.device import select_device
    from heedful.errors import UsageError
    from heedful.interop.conversion import load

    if text and input_ is not None:
        raise UsageError(f"texts come from the command line or from --input {input_}: give one or the other")
    trained = load(model, device=select_device(device))
    notes = Notes()
    with progress(input_, output) as watch:
        texts = lines_of(text, input_, on_bad_line, notes, watch)
        found = (
            _noted(number, each, notes) for number, each in enumerate(trained.iter_embed(texts, normalise=normalise), 1)
        )
        if compare:
            _compare(list(found), output, as_json)
        elif output is not None and output.suffix == ".npy":
            _save(list(found), output)
        else:
            with answers_to(output) as write:
                for each in found:
                    vector = [round(value, 7) for value in each.vector.tolist()]
                    plain = " ".join(f"{value:.6g}" for value in vector)
                    told = {"text": each.text, "vector": vector, "warnings": list(each.warnings)}
                    write(json.dumps(told, ensure_ascii=False) if as_json else plain)
    notes.close()


def _noted(number: int, embedded: TextEmbedding, notes: Notes) -> TextEmbedding:
    for warning in embedded.warnings:
        notes(number, warning)
    return embedded


def _compare(found: list[TextEmbedding], output: Path | None, as_json: bool) -> None:
    import numpy as np

    from heedful.errors import UsageError
    from heedful.inference.embedder import cosine_similarities

    if len(found) < 2:
        raise UsageError(f"--compare takes two texts or more, got {len(found)}")
    alike = cosine_similarities(np.stack([each.vector for each in found[1:]]), found[0].vector).tolist()
    with answers_to(output) as write:
        for cosine, each in zip(alike, found[1:], strict=True):
            told = {"text": each.text, "cosine": cosine}
            write(json.dumps(told, ensure_ascii=False) if as_json else f"{cosine:.4f}  {each.text}")


def _save(found: list[TextEmbedding], output: Path) -> None:
    """The array appears whole or not at all."""
    import numpy as np

    from heedful.errors import DataError, HeedfulError
    from heedful.files import atomic_file

    if not found:
        raise DataError("there is no text to give a vector to")
    try:
        with atomic_file(output) as temporary, temporary.open("wb") as stream:
            np.save(stream, np.stack([each.vector for each in found]))
    except OSError as error:
        raise HeedfulError(f"{output} cannot be written: {error.strerror}") from None
