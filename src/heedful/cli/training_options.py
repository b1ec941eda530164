"""The options that commands about training share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.argv import duration_in_seconds
from heedful.training.tasks import TASKS

Task = Annotated[str | None, typer.Argument(help=" · ".join(f"{name} ({door.files})" for name, door in TASKS.items()))]
Files = Annotated[list[Path] | None, typer.Argument(help="Text: .txt, .tsv, .csv, .jsonl, plain or .gz/.xz.")]
Valid = Annotated[list[Path] | None, typer.Option(help="Validation text (repeat for two files).")]
RecipeFile = Annotated[Path | None, typer.Option(help="A recipe.toml; what it leaves open is chosen.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="One setting, as model.width=256.")]
Kind = Annotated[str, typer.Option(help="transformer, or recurrent: its ancestor.")]
StartFrom = Annotated[Path | None, typer.Option("--from", help="Start from this model's weights.")]
Time = Annotated[str | None, typer.Option(help="Time allowed, as 90s, 10m or 2h.  [default: 10m]")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps to take, instead of a time.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
OnBadLine = Annotated[str | None, typer.Option(help="fail, or skip and count.  [default: fail]")]
NextSentence = Annotated[
    bool,
    typer.Option("--next-sentence", help="fill: also learn which text follows which; blank lines end documents."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def wishes(
    valid: list[Path] | None,
    recipe: Path | None,
    settings: list[str] | None,
    model: str,
    from_: Path | None,
    time: str | None,
    steps: int | None,
    device: str,
    on_bad_line: str | None,
    next_sentence: bool,
) -> dict[str, Any]:
    """The same options as `heedful.train` and `heedful.plan` take them."""
    return {
        "valid": names(valid),
        "recipe": None if recipe is None else str(recipe),
        "settings": (*(settings or ()), *(("data.next_sentence=true",) if next_sentence else ())),
        "kind": model,
        "start_from": None if from_ is None else str(from_),
        "seconds": None if time is None else duration_in_seconds(time),
        "steps": steps,
        "device": device,
        "on_bad_line": on_bad_line,
    }


def names(files: list[Path] | None) -> tuple[str, ...]:
    return tuple(str(file) for file in files or ())
