"""heedful plan: what training would take, before it is begun."""

from __future__ import annotations

from typing import Annotated

import typer

from heedful.cli.training_options import (
    AsJson,
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
    wishes,
)


def plan(
    task: Task,
    files: Files = None,
    valid: Valid = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    model: Kind = "transformer",
    from_: StartFrom = None,
    next_sentence: NextSentence = False,
    time: Time = None,
    steps: Steps = None,
    device: Device = "auto",
    on_bad_line: OnBadLine = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Also on so many devices like this one: memory, traffic, tokens a second.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast a training run: parameters by part, operations, peak memory, time and disk. Nothing is trained."""
    from heedful.training.reporting.events import terminal_listener
    from heedful.training.run import plan as forecast
    from heedful.training.run import plan_scaled

    asked = wishes(valid, recipe, settings, model, from_, time, steps, device, on_bad_line, next_sentence)
    listeners = [] if as_json else [terminal_listener()]
    found = (
        forecast(task, *(files or []), **asked, listeners=listeners)
        if gpus is None
        else plan_scaled(gpus, task, *(files or []), **asked, listeners=listeners)
    )
    typer.echo(found.to_json() if as_json else str(found))
