"""heedful train: from text files to a trained, evaluated model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli import training_options as options
from heedful.cli.decoding_options import BleuTokenizer


def train(
    task: options.Task = None,
    files: options.Files = None,
    valid: options.Valid = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Test text for the final evaluation; repeat it for a pair, as --valid."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the run; default: TASK-1, TASK-2, …")
    ] = None,
    recipe: options.RecipeFile = None,
    settings: options.Settings = None,
    architecture: options.Architecture = "transformer",
    start_from: options.StartFrom = None,
    next_sentence: options.NextSentence = False,
    time: options.Time = None,
    steps: options.Steps = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, show_default="1", help="Random seed; the same recipe and seed give the same model."),
    ] = None,
    bleu_tokenizer: BleuTokenizer | None = None,
    device: options.Device = "auto",
    columns: options.Columns = None,
    on_bad_line: options.OnBadLine = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard curves.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Resume the run in this folder; needs no other arguments. With a task and files: start it there "
            "if it does not exist.",
        ),
    ] = None,
    auto_batch: Annotated[
        bool,
        typer.Option(
            "--auto-batch",
            help="Out of memory: restart with half the batch, twice the accumulation.",
        ),
    ] = False,
    check_resume: Annotated[
        bool,
        typer.Option(
            "--check-resume",
            help="Then check on a short run that resuming is exact; see card.md.",
        ),
    ] = False,
) -> None:
    """Train a model on your text. Settings you do not give are chosen automatically, shown, and saved as a recipe."""
    from heedful.training import run
    from heedful.training.reporting.events import terminal_listener

    run.train(
        task, *(files or ()), valid=valid or (), test=test or (), out=out, recipe=recipe,
        settings=options.with_next_sentence(settings, next_sentence), architecture=architecture,
        start_from=start_from, time=time, steps=steps, seed=seed,
        bleu_tokenizer=bleu_tokenizer, device=device, columns=columns or (), on_bad_line=on_bad_line,
        tensorboard=tensorboard, resume=resume, auto_batch=auto_batch, check_resume=check_resume,
        listeners=[terminal_listener()],
    )  # fmt: skip
