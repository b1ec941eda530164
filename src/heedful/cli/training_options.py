"""Options shared by `heedful train` and `heedful plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.training.tasks import TASKS

Task = Annotated[str | None, typer.Argument(help=" · ".join(f"{name} ({task.files})" for name, task in TASKS.items()))]
Files = Annotated[
    list[Path] | None, typer.Argument(help="Training text: .txt, .tsv, .csv, .jsonl, .tmx, plain or .gz/.xz.")
]
Valid = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Validation text; for a pair repeat it: --valid dev.en --valid dev.de."),
]
RecipeFile = Annotated[Path | None, typer.Option(metavar="FILE", help="A recipe.toml; missing settings are automatic.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One recipe setting, e.g. model.width=256.")
]
Architecture = Annotated[str, typer.Option("--model", help="transformer or recurrent (LSTM with attention).")]
StartFrom = Annotated[
    Path | None, typer.Option("--from", metavar="DIR", help="Fine-tune: start from this model's weights.")
]
Time = Annotated[str | None, typer.Option(show_default="10m", help="Time limit, e.g. 90s, 10m or 2h.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Number of training steps, instead of a time limit.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Columns = Annotated[
    str | None,
    typer.Option(help="Columns to read, by name or number: en,de or 1,2 or review,stars.  [default: usual names]"),
]
OnBadLine = Annotated[str | None, typer.Option(show_default="fail", help="Unreadable lines: fail, or skip and count.")]
NextSentence = Annotated[
    bool,
    typer.Option("--next-sentence", help="fill: also learn next-sentence prediction; blank lines end documents."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_next_sentence(settings: list[str] | None, next_sentence: bool) -> list[str]:
    """The settings of --set and of --next-sentence."""
    return [*(settings or ()), *(["data.next_sentence=true"] if next_sentence else [])]
