"""heedful train: from text files to a trained, scored model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.training_options import (
    Device,
    Files,
    Kind,
    NextSentence,
    OnBadLine,
    RecipeFile,
    Settings,
    StartFrom,
    Steps,
    Task,
    Time,
    Valid,
    names,
    wishes,
)


def train(
    task: Task = None,
    files: Files = None,
    valid: Valid = None,
    test: Annotated[
        list[Path] | None, typer.Option(help="Test text, scored at the end (repeat for two files).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model; default: TASK-1, TASK-2, …")] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    model: Kind = "transformer",
    from_: StartFrom = None,
    next_sentence: NextSentence = False,
    time: Time = None,
    steps: Steps = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same recipe, same model.  [default: 1]")] = None,
    device: Device = "auto",
    on_bad_line: OnBadLine = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard curves.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Go on with the run in this folder, or begin it there; needs no other arguments."
        ),
    ] = None,
    auto_batch: Annotated[
        bool, typer.Option("--auto-batch", help="Out of memory: start over with smaller batches, more to a step.")
    ] = False,
    prove_resume: Annotated[
        bool, typer.Option("--prove-resume", help="Kill and resume a short stretch, and compare: the card tells.")
    ] = False,
) -> None:
    """Train a model on your text: sizes, rates and the tokenizer are chosen for you, shown, and saved as a recipe."""
    from heedful.training.reporting.events import terminal_listener
    from heedful.training.run import train as run

    run(
        task,
        *(files or []),
        **wishes(valid, recipe, settings, model, from_, time, steps, device, on_bad_line, next_sentence),
        test=names(test),
        out=None if out is None else str(out),
        seed=seed,
        tensorboard=tensorboard,
        resume=None if resume is None else str(resume),
        auto_batch=auto_batch,
        prove_resume=prove_resume,
        listeners=[terminal_listener()],
    )
