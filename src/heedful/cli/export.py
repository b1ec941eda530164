"""heedful export: a trained model for another library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where it goes; must not exist, or be empty.")],
    to: Annotated[Literal["huggingface", "ctranslate2", "onnx", "word2vec"], typer.Option(help="For which library.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 bits (ctranslate2).")] = False,
) -> None:
    """Write MODEL for transformers, CTranslate2 or onnxruntime, with its tokenizer; or the vectors of its words."""
    from heedful.interop.conversion import export as write

    write(model, to, folder, quantisation="int8" if int8 else "float32")
    typer.echo(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
