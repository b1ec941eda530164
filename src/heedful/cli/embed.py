"""heedful embed: vectors of texts, and cosine similarities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.text_io import LineStream
from heedful.errors import DataError, HeedfulError, UsageError
from heedful.files import atomic_file

if TYPE_CHECKING:
    from heedful.inference.text_embedding import TextEmbedding


def embed(
    model: Annotated[
        Path, typer.Argument(help="Model folder: an encoder, translator, language model or word vectors.")
    ],
    text: options.Texts = None,
    input_: options.Input = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Write the vectors to this file: .npy (one array), or lines of text."),
    ] = None,
    as_json: options.AsJson = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the cosine similarity of the first text with each of the others.")
    ] = False,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")] = False,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Embed each TEXT as the mean of MODEL's hidden states over its tokens; with --compare print similarities.

    Examples:
      heedful embed translate-1 "A dog." "A cat." --compare
      heedful embed translate-1 --input texts.txt --output vectors.npy
    """
    import heedful

    to_array = output is not None and output.suffix == ".npy" and not compare
    lines = LineStream(text, input_, None if to_array else output, on_bad_line)
    trained = heedful.load(model, device=device)
    with lines:
        embeddings = trained.iter_embed(lines, normalize=normalize)
        if compare or to_array:
            results = list(embeddings)
            for number, embedding in enumerate(results, 1):
                for warning in embedding.warnings:
                    lines.warn(number, warning)
            if compare:
                write_similarities(results, lines, as_json)
            elif output is not None:
                save_array(results, output)
            return
        for embedding in embeddings:
            vector = [round(value, 7) for value in embedding.vector.tolist()]
            result = {"text": embedding.text, "vector": vector}
            result |= {"warnings": list(embedding.warnings)} if embedding.warnings else {}
            lines.write(result if as_json else " ".join(f"{value:.6g}" for value in vector), embedding.warnings)


def write_similarities(embeddings: list[TextEmbedding], lines: LineStream, as_json: bool) -> None:
    import numpy as np

    from heedful.inference.text_embedding import cosine_similarities

    if len(embeddings) < 2:
        raise UsageError(f"--compare takes at least two texts, got {len(embeddings)}")
    first, *others = embeddings
    cosines = cosine_similarities(np.stack([each.vector for each in others]), first.vector).tolist()
    for cosine, other in zip(cosines, others, strict=True):
        lines.write({"text": other.text, "cosine": cosine} if as_json else f"{cosine:.4f}\t{other.text}")


def save_array(embeddings: list[TextEmbedding], output: Path) -> None:
    """Write the vectors as one array; the file appears complete or not at all."""
    import numpy as np

    if not embeddings:
        raise DataError("there is no text to embed")
    try:
        with atomic_file(output) as temporary, temporary.open("wb") as stream:
            np.save(stream, np.stack([each.vector for each in embeddings]))
    except OSError as error:
        raise HeedfulError(f"{output} cannot be written: {error.strerror or error}") from None
