"""heedful embed: vectors of texts, and cosine similarities."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.intervention_options import InterventionFile, Without, read_interventions
from heedful.cli.text_io import LineStream
from heedful.cli.word_output import WordOutput, save_array, write_words
from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.inference.text_embedding import TextEmbedding


WORDS = "Words in context"


def embed(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Model folder: an encoder, translator, language model or word vectors."),
    ],
    text: options.Texts = None,
    input_: options.Input = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="Write the vectors to this file: .npy (one array), .csv, .tsv, or lines of text."
        ),
    ] = None,
    as_json: options.AsJson = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the cosine similarity of the first text with each of the others.")
    ] = False,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")] = False,
    words: Annotated[
        bool, options.option(WORDS, "--words", help="One vector for each word, in its context, instead of each text.")
    ] = False,
    word: Annotated[
        str | None,
        options.option(
            WORDS, metavar="WORD", help="Only this word; with --compare its first occurrence with the others."
        ),
    ] = None,
    layer: Annotated[
        int, options.option(WORDS, metavar="N", help="After which layer, counted from 0; -1 is the last.")
    ] = -1,
    without: Without = None,
    interventions: InterventionFile = None,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Embed each TEXT as the mean of MODEL's hidden states over its tokens; with --compare print similarities.

    Examples:
      heedful embed translate-1 "A dog." "A cat." --compare
      heedful embed translate-1 --input texts.txt --output vectors.npy
      heedful embed fill-1 --word bank --compare "The bank of the river." "The bank lent money."
    """
    import heedful

    to_array = output is not None and output.suffix == ".npy" and not compare
    lines = LineStream(text, input_, None if to_array else output, on_bad_line)
    trained = heedful.load(model, device=device)
    changes = read_interventions(trained, without, interventions)
    if words or word is not None:
        if compare and word is None:
            raise UsageError("--compare takes one word's occurrences: name it with --word")
        states = trained.iter_word_states(lines, layer=layer, interventions=changes)
        with lines:
            write_words(states, lines, WordOutput(word, normalize, compare, as_json, output if to_array else None))
        return
    if layer != -1:
        raise UsageError("--layer is for --words or --word")
    embeddings = trained.iter_embed(lines, normalize=normalize, interventions=changes)
    with lines:
        write_texts(embeddings, lines, as_json, compare, output if to_array else None)


def write_texts(
    embeddings: Iterable[TextEmbedding], lines: LineStream, as_json: bool, compare: bool, array: Path | None
) -> None:
    """Write a line for each text, their similarities, or one array."""
    if compare or array is not None:
        results = list(embeddings)
        for number, embedding in enumerate(results, 1):
            for warning in embedding.warnings:
                lines.warn(number, warning)
        if array is not None:
            save_array([result.vector for result in results], array)
        else:
            write_similarities(results, lines, as_json)
        return
    for embedding in embeddings:
        vector = [round(value, 7) for value in embedding.vector.tolist()]
        result = {"text": embedding.text, "vector": vector}
        result |= {"warnings": list(embedding.warnings)} if embedding.warnings else {}
        numbers = [f"{value:.6g}" for value in vector]
        lines.write(result if as_json else lines.table_line((), numbers), embedding.warnings)


def write_similarities(embeddings: list[TextEmbedding], lines: LineStream, as_json: bool) -> None:
    import numpy as np

    from heedful.inference.text_embedding import cosine_similarities

    if len(embeddings) < 2:
        raise UsageError(f"--compare takes at least two texts, got {len(embeddings)}")
    first, *others = embeddings
    cosines = cosine_similarities(np.stack([embedding.vector for embedding in others]), first.vector).tolist()
    for cosine, embedding in zip(cosines, others, strict=True):
        lines.write({"text": embedding.text, "cosine": cosine} if as_json else f"{cosine:.4f}\t{embedding.text}")
