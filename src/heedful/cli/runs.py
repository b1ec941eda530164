"""heedful runs: the runs in a folder, with their scores."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.decoding_options import AsJson

EXAMPLES = {"translate": "pair", "classify": "text", "answer": "question"}
"""Names of an example of a task; of others it is a document."""


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that holds runs.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """List the runs in FOLDER from the oldest to the newest: task, data, size, date and scores.

    Examples:
      heedful runs
      heedful runs experiments --json
    """
    from heedful.errors import UsageError
    from heedful.quantities import count
    from heedful.training.run_catalog import list_runs

    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    listed = list_runs(folder)
    if as_json:
        for run in listed:
            typer.echo(json.dumps(asdict(run), ensure_ascii=False))
        return
    if not listed:
        typer.echo(f"no runs in {folder.resolve()}")
    for run in listed:
        size = [count(run.parameters, "parameter")] if run.parameters else []
        size += [count(run.examples, EXAMPLES.get(run.task, "document"))] if run.examples else []
        unusable = "not usable: " if run.is_useful is False else ""
        typer.echo(f"{run.folder}  {run.task}  {run.date.replace('T', ' ')}  {unusable}{run.result}")
        typer.echo(f"    {', '.join(run.data)}" + (f"  ({', '.join(size)})" if size else ""))
