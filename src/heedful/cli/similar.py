"""heedful similar: the words nearest to a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.training_options import AsJson

Table = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or a word2vec file: text, binary, .gz.")]
Top = Annotated[int, typer.Option(min=1, help="How many words to show.")]


def similar(
    model: Table,
    words: Annotated[list[str], typer.Argument(metavar="WORD…", help="One word or more.")],
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Show the words nearest to each WORD, with their cosines (1: the same direction, 0: nothing in common)."""
    from heedful.inference.trained import load_word_vectors

    table = load_word_vectors(model)
    found = {word: table.similar(word, top) for word in words}
    if as_json:
        listed = [{"word": word, "similar": [near._asdict() for near in nears]} for word, nears in found.items()]
        typer.echo(json.dumps(listed, ensure_ascii=False))
        return
    for number, (word, nears) in enumerate(found.items()):
        if len(found) > 1:
            typer.echo(("\n" if number else "") + word)
        wide = max((len(near.word) for near in nears), default=0)
        for near in nears:
            typer.echo(f"{'  ' if len(found) > 1 else ''}{near.word:<{wide}}  {near.cosine:.4f}")
