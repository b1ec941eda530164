"""heedful similar: nearest neighbors of words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.decoding_options import AsJson

if TYPE_CHECKING:
    from heedful.vectors.nearest_neighbors import Neighbor

VectorSource = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder, or word2vec file: text, binary, .gz.")
]
Top = Annotated[int, typer.Option(min=1, help="Number of words to print.")]


def similar(
    model: VectorSource,
    words: Annotated[list[str], typer.Argument(metavar="WORD…", help="One or more words.")],
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Print the nearest neighbors of each WORD with their cosine similarities."""
    from heedful.loading import load_word_vectors

    table = load_word_vectors(model)
    results = {word: table.similar(word, top) for word in words}
    if as_json:
        listed = [{"word": word, "similar": [near._asdict() for near in nears]} for word, nears in results.items()]
        typer.echo(json.dumps(listed, ensure_ascii=False))
        return
    for number, (word, nears) in enumerate(results.items()):
        if len(results) > 1:
            typer.echo(("\n" if number else "") + word)
        print_neighbors(nears, indent="  " if len(results) > 1 else "")


def print_neighbors(neighbors: Sequence[Neighbor], indent: str = "") -> None:
    width = max((len(near.word) for near in neighbors), default=0)
    for near in neighbors:
        typer.echo(f"{indent}{near.word:<{width}}  {near.cosine:.4f}")
