"""heedful import: convert a Hugging Face model to a heedful model folder, or accept a changed one.

heedful import bert-base-uncased bert
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A Hugging Face model folder (safetensors), or a changed one."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; new or empty.")],
) -> None:
    """Convert a BERT, GPT-2, Llama, Marian, Pegasus or BART folder to a heedful model folder.

    A model folder of heedful is accepted as it is, with files that differ from its manifest.json; each is named.

    Examples:
      heedful import bert-base-uncased bert
    """
    from heedful.cli.standard_streams import print_message
    from heedful.interop.conversion import import_folder
    from heedful.model_files import ModelFiles
    from heedful.models.build import count_parameters

    model = import_folder(source, folder).model
    for name in ModelFiles(source, verify=False).differing():
        print_message(f"accepted, though manifest.json has another checksum or none: {name}")
    parameters = count_parameters(model).total
    typer.echo(f"{folder}: {model.config.family.replace('_', '-')}, {parameters:,} parameters")
