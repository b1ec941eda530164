"""heedful train: from text files to a trained, scored model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.words import duration_in_seconds


def train(
    task: Annotated[
        str | None, typer.Argument(help="translate (two aligned files, or one table) or generate (running text).")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Text: .txt, .tsv, .csv, .jsonl, plain or .gz/.xz.")
    ] = None,
    valid: Annotated[list[Path] | None, typer.Option(help="Validation text (repeat for two files).")] = None,
    test: Annotated[
        list[Path] | None, typer.Option(help="Test text, scored at the end (repeat for two files).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model; default: TASK-1, TASK-2, …")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe.toml; what it leaves open is chosen.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as model.width=256.")] = None,
    model: Annotated[str, typer.Option(help="transformer, or recurrent: its ancestor.")] = "transformer",
    from_: Annotated[Path | None, typer.Option("--from", help="Start from this model's weights.")] = None,
    time: Annotated[str | None, typer.Option(help="Time allowed, as 90s, 10m or 2h.  [default: 10m]")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to take, instead of a time.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same recipe, same model.  [default: 1]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    on_bad_line: Annotated[str | None, typer.Option(help="fail, or skip and count.  [default: fail]")] = None,
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
    from heedful.training.events import console
    from heedful.training.run import train as run

    run(
        task,
        *(files or []),
        valid=_names(valid),
        test=_names(test),
        out=None if out is None else str(out),
        recipe=None if recipe is None else str(recipe),
        settings=tuple(settings or ()),
        kind=model,
        start_from=None if from_ is None else str(from_),
        seconds=None if time is None else duration_in_seconds(time),
        steps=steps,
        seed=seed,
        device=device,
        on_bad_line=on_bad_line,
        tensorboard=tensorboard,
        resume=None if resume is None else str(resume),
        auto_batch=auto_batch,
        prove_resume=prove_resume,
        listeners=[console()],
    )


def _names(files: list[Path] | None) -> tuple[str, ...]:
    return tuple(str(file) for file in files or ())
