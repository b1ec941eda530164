"""heedful similar: nearest neighbors of words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.decoding_options import AsJson
from heedful.cli.standard_streams import print_message
from heedful.cli.text_io import output_lines
from heedful.errors import UsageError

VectorSource = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder, or word2vec file: text, binary, .gz.")
]
Top = Annotated[int, typer.Option(min=1, help="Number of words to print.")]


def similar(
    model: VectorSource,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="One or more words.")],
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Print the nearest neighbors of each WORD with their cosine similarities.

    One line out for each neighbor: word, neighbor and cosine, separated by tabs.

    Examples:
      heedful similar embed-1 king queen --top 5
    """
    from heedful.loading import load_word_vectors

    table = load_word_vectors(model)
    unknown = {word: table.problem(word) for word in words}
    if all(unknown.values()):
        raise UsageError("; ".join(unknown.values()))
    with output_lines(None) as write:
        for word, problem in unknown.items():
            neighbors = [] if problem else table.similar(word, top)
            if problem:
                print_message(problem)
            if as_json:
                result = {"word": word, "neighbors": [near._asdict() for near in neighbors]}
                write(json.dumps(result | ({"warnings": [problem]} if problem else {}), ensure_ascii=False))
            else:
                for near in neighbors:
                    write(f"{word}\t{near.word}\t{near.cosine:.4f}")
