"""heedful import: a model of Hugging Face's made ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    theirs: Annotated[Path, typer.Argument(metavar="HF_DIR", help="config.json, model.safetensors, tokenizer.json.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where ours goes; must not exist, or be empty.")],
) -> None:
    """Read a BERT, GPT-2, Llama, Marian, Pegasus or BART folder, and write a model folder of ours."""
    from heedful.interop.conversion import import_folder
    from heedful.models.build import count_parameters

    trained = import_folder(theirs, folder)
    config = trained.model.config
    typer.echo(f"{folder}: {config.family.replace('_', '-')}, {count_parameters(trained.model).total:,} parameters")
