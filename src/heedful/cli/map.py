"""heedful map: plot word vectors in two dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.similar import VectorSource
from heedful.cli.standard_streams import print_message
from heedful.errors import UsageError


def map_(
    model: VectorSource,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Three words or more.")],
    output: Annotated[Path, typer.Option(help="Image file: .png, .svg or .pdf.")] = Path("map.png"),
    near: Annotated[int, typer.Option(min=0, help="Also plot this many nearest neighbors of each word.")] = 0,
) -> None:
    """Plot the vectors of WORDs, projected to their first two principal components (PCA).

    Examples:
      heedful map embed-1 king queen man woman --near 3 --output map.svg
    """
    from heedful.inspection.attention_plot import drawn_text, picture_fonts
    from heedful.loading import load_word_vectors
    from heedful.vectors.pca_plot import draw_word_map

    table = load_word_vectors(model)
    unknown = [problem for word in words if (problem := table.problem(word))]
    if len(unknown) == len(words):
        raise UsageError("; ".join(unknown))
    for problem in unknown:
        print_message(f"left out: {problem}")
    shown = dict.fromkeys(table.words[table.index(word)] for word in words if word in table)
    for word in list(shown) if near else ():
        shown |= dict.fromkeys(neighbor.word for neighbor in table.similar(word, near))
    vectors = table.unit_vectors[[table.index(word) for word in shown]]
    with picture_fonts():
        title = f"{len(shown)} words of {drawn_text(model.name)}"
        draw_word_map([drawn_text(word) for word in shown], vectors, output, title=title)
    typer.echo(str(output))
