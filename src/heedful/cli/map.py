"""heedful map: words as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.similar import Table


def map_(
    model: Table,
    words: Annotated[list[str], typer.Argument(metavar="WORD…", help="Three words or more.")],
    output: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")] = Path("map.png"),
    near: Annotated[int, typer.Option(min=0, help="Also show so many of each word's nearest.")] = 0,
) -> None:
    """Draw WORDs where their vectors lie, flattened to the two directions in which they differ most (PCA)."""
    from heedful.inference.trained import load_word_vectors
    from heedful.vectors.pca_plot import draw_word_map

    table = load_word_vectors(model)
    shown = dict.fromkeys(table.words[table.index(word)] for word in words)
    for word in list(shown) if near else ():
        shown |= dict.fromkeys(found.word for found in table.similar(word, near))
    places = [table.index(word) for word in shown]
    draw_word_map(list(shown), table.unit_vectors[places], output, title=f"{len(shown)} words of {model.name}")
    typer.echo(str(output))
