"""heedful export: convert a model for another library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from heedful.cli.decoding_options import Model


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; new or empty.")],
    to: Annotated[Literal["huggingface", "ctranslate2", "onnx", "word2vec"], typer.Option(help="Format.")],
    int8: Annotated[bool, typer.Option("--int8", help="8-bit weights (ctranslate2 only).")] = False,
) -> None:
    """Export MODEL and its tokenizer for transformers, CTranslate2 or onnxruntime, or its word vectors.

    Prints the files, and Python that uses them.

    Examples:
      heedful export translate-1 for-ctranslate2 --to ctranslate2 --int8
      heedful export translate-1 for-transformers --to huggingface
    """
    import heedful
    from heedful.interop.usage_snippets import usage_snippet

    trained = heedful.load(model, device="cpu")
    trained.export(to, folder, quantization="int8" if int8 else "float32")
    typer.echo(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    if snippet := usage_snippet(trained, to, folder):
        typer.echo(f"\n{snippet}", nl=False)
