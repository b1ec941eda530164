"""Options shared by `heedful train` and `heedful plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.decoding_options import MACHINE, option

TEXT, MODEL, LENGTH, RUN = "Text", "Model and settings", "Length", "Run folder"
"""Groups of options in the help text."""

Task = Annotated[str | None, typer.Argument(metavar="TASK", help="What to train: see above.")]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Training text: .txt, .tsv, .csv, .jsonl, .tmx, plain or .gz/.xz."),
]
Valid = Annotated[
    list[Path] | None,
    option(
        TEXT,
        metavar="FILE",
        show_default="a part of the training text",
        help="Validation text; for a pair repeat it: --valid dev.en --valid dev.de.",
    ),
]
Test = Annotated[
    list[Path] | None,
    option(
        TEXT,
        metavar="FILE",
        show_default="the validation text",
        help="Test text for the final evaluation; repeat it for a pair, as --valid.",
    ),
]
Columns = Annotated[
    str | None,
    option(
        TEXT,
        metavar="A,B",
        show_default="usual names",
        help="Columns of a table by name or number: en,de or 1,2 or review,stars.",
    ),
]
OnBadLine = Annotated[
    str | None,
    option(TEXT, metavar="fail|skip", show_default="fail", help="Unreadable lines: fail, or skip and count."),
]
Settings = Annotated[
    list[str] | None,
    option(
        MODEL,
        "--set",
        metavar="KEY=VALUE",
        show_default="automatic",
        help="A recipe setting, e.g. model.width=256 or training.betas=0.9,0.98; may be repeated.",
    ),
]
RecipeFile = Annotated[
    Path | None, option(MODEL, metavar="FILE", help="Settings from a recipe.toml; missing ones are automatic.")
]
Architecture = Annotated[
    str, option(MODEL, "--model", metavar="NAME", help="transformer or recurrent (LSTM with attention).")
]
StartFrom = Annotated[
    Path | None, option(MODEL, "--from", metavar="DIR", help="Fine-tune: start from this model's weights.")
]
NextSentence = Annotated[
    bool,
    option(MODEL, "--next-sentence", help="Also learn next-sentence prediction; blank lines end documents."),
]
Time = Annotated[
    str | None, option(LENGTH, metavar="DURATION", show_default="10m", help="Time limit, e.g. 90s, 10m or 2h.")
]
Steps = Annotated[int | None, option(LENGTH, min=1, help="Number of training steps, instead of a time limit.")]
Seed = Annotated[
    int | None,
    option(LENGTH, min=0, show_default="1", help="Random seed; the same recipe and seed give the same model."),
]
Device = Annotated[str, option(MACHINE, help="auto, cpu, cuda or mps.")]
AutoBatch = Annotated[
    bool,
    option(MACHINE, "--auto-batch", help="Out of memory: restart with half the batch, twice the accumulation."),
]
Out = Annotated[
    Path | None, option(RUN, metavar="DIR", show_default="TASK-1, TASK-2, …", help="Folder for the run; new or empty.")
]
Resume = Annotated[
    Path | None,
    option(
        RUN,
        metavar="DIR",
        help="Resume the run in this folder; needs no other arguments. With a task and files: start it there if it "
        "does not exist.",
    ),
]
CheckResume = Annotated[
    bool, option(RUN, "--check-resume", help="Then check on a short run that resuming is exact; see card.md.")
]
TensorBoard = Annotated[bool, option(RUN, "--tensorboard", help="Also write TensorBoard curves.")]


def with_next_sentence(settings: list[str] | None, next_sentence: bool) -> list[str]:
    """The settings of --set and of --next-sentence."""
    return [*(settings or ()), *(["data.next_sentence=true"] if next_sentence else [])]
