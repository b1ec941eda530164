"""heedful import: convert a Hugging Face model to a heedful model folder.

heedful import bert-base-uncased bert
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="HF_DIR", help="A Hugging Face model folder (safetensors)."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; new or empty.")],
) -> None:
    """Convert a BERT, GPT-2, Llama, Marian, Pegasus or BART folder to a heedful model folder.

    Examples:
      heedful import bert-base-uncased bert
    """
    from heedful.interop.conversion import import_folder
    from heedful.models.build import count_parameters

    model = import_folder(source, folder).model
    parameters = count_parameters(model).total
    typer.echo(f"{folder}: {model.config.family.replace('_', '-')}, {parameters:,} parameters")
