"""heedful plan: forecast the cost of a training run without starting it."""

from __future__ import annotations

from typing import Annotated

import typer

from heedful.cli import training_options as options
from heedful.cli.decoding_options import MACHINE, AsJson, BleuTokenizer, option


def plan(
    task: options.Task = None,
    files: options.Files = None,
    valid: options.Valid = None,
    test: options.Test = None,
    columns: options.Columns = None,
    on_bad_line: options.OnBadLine = None,
    time: options.Time = None,
    steps: options.Steps = None,
    seed: options.Seed = None,
    settings: options.Settings = None,
    recipe: options.RecipeFile = None,
    architecture: options.Architecture = "transformer",
    start_from: options.StartFrom = None,
    next_sentence: options.NextSentence = False,
    bleu_tokenizer: BleuTokenizer = None,
    device: options.Device = "auto",
    gpus: Annotated[
        int | None,
        option(
            MACHINE, min=1, help="Also forecast this many devices like this one: memory, communication, throughput."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast a training run: parameters by part, operations, peak memory, time and disk. Nothing is trained."""
    from heedful.device import process_start
    from heedful.training.forecast.multi_gpu import plan_multi_gpu
    from heedful.training.reporting.events import terminal_listener
    from heedful.training.request import TrainingRequest
    from heedful.training.run import prepare_request

    request = TrainingRequest(
        task=task, files=files or (), valid=valid or (), test=test or (), recipe=recipe,
        settings=options.with_next_sentence(settings, next_sentence), architecture=architecture,
        start_from=start_from, time=time, steps=steps, seed=seed, bleu_tokenizer=bleu_tokenizer, device=device,
        columns=columns or (), on_bad_line=on_bad_line,
        listeners=() if as_json else (terminal_listener(),), start=process_start(),
    )  # fmt: skip
    prepared = prepare_request(request)
    forecast = prepared.forecast if gpus is None else plan_multi_gpu(prepared, gpus)
    typer.echo(forecast.to_json() if as_json else str(forecast))
