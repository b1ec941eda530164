"""heedful analogy: what is to this as that is to the other."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from heedful.cli.similar import Table, Top
from heedful.cli.training_options import AsJson


def analogy(
    model: Table,
    one: Annotated[str, typer.Argument(metavar="PARIS", help="A word …")],
    its: Annotated[str, typer.Argument(metavar="FRANCE", help="… what it belongs to …")],
    other: Annotated[str, typer.Argument(metavar="ITALY", help="… and what the answer should belong to.")],
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """Find what is to ITALY as PARIS is to FRANCE: the words nearest to paris − france + italy, but for these three."""
    from heedful.inference.trained import load_word_vectors

    found = load_word_vectors(model).analogy(one, its, other, top)
    if as_json:
        typer.echo(json.dumps([near._asdict() for near in found], ensure_ascii=False))
        return
    wide = max((len(near.word) for near in found), default=0)
    for near in found:
        typer.echo(f"{near.word:<{wide}}  {near.cosine:.4f}")
