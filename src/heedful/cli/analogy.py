"""heedful analogy: a is to b as ? is to c, by word vectors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from heedful.cli.decoding_options import AsJson
from heedful.cli.similar import Top, VectorSource
from heedful.cli.text_io import output_lines


def analogy(
    model: VectorSource,
    one: Annotated[str, typer.Argument(metavar="PARIS", help="The word a of a − b + c.")],
    its: Annotated[str, typer.Argument(metavar="FRANCE", help="The word b.")],
    other: Annotated[str, typer.Argument(metavar="ITALY", help="The word c.")],
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """Find the word that is to ITALY as PARIS is to FRANCE: the nearest neighbors of paris − france + italy.

    Examples:
      heedful analogy embed-1 paris france italy
    """
    from heedful.loading import load_word_vectors

    neighbors = load_word_vectors(model).analogy(one, its, other, top)
    with output_lines(None) as write:
        if as_json:
            result = {"words": [one, its, other], "neighbors": [near._asdict() for near in neighbors]}
            write(json.dumps(result, ensure_ascii=False))
            return
        for near in neighbors:
            write(f"{near.word}\t{near.cosine:.4f}")
