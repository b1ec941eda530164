"""heedful train: from text files to a trained, evaluated model."""

from __future__ import annotations

from heedful.cli import training_options as options
from heedful.cli.decoding_options import BleuTokenizer


def train(
    task: options.Task = None,
    files: options.Files = None,
    valid: options.Valid = None,
    test: options.Test = None,
    columns: options.Columns = None,
    on_bad_line: options.OnBadLine = None,
    time: options.Time = None,
    steps: options.Steps = None,
    seed: options.Seed = None,
    out: options.Out = None,
    resume: options.Resume = None,
    check_resume: options.CheckResume = False,
    tensorboard: options.TensorBoard = False,
    settings: options.Settings = None,
    recipe: options.RecipeFile = None,
    architecture: options.Architecture = "transformer",
    start_from: options.StartFrom = None,
    next_sentence: options.NextSentence = False,
    bleu_tokenizer: BleuTokenizer = None,
    device: options.Device = "auto",
    auto_batch: options.AutoBatch = False,
) -> None:
    """Train a model on your text, evaluate it, and write it with a model card to a new folder."""
    from heedful.device import process_start
    from heedful.training.reporting.events import terminal_listener
    from heedful.training.request import TrainingRequest
    from heedful.training.run import run_training

    request = TrainingRequest(
        task=task, files=files or (), valid=valid or (), test=test or (), out=out, recipe=recipe,
        settings=options.with_next_sentence(settings, next_sentence), architecture=architecture,
        start_from=start_from, time=time, steps=steps, seed=seed, bleu_tokenizer=bleu_tokenizer, device=device,
        columns=columns or (), on_bad_line=on_bad_line, tensorboard=tensorboard, resume=resume, auto_batch=auto_batch,
        check_resume=check_resume, listeners=(terminal_listener(),), start=process_start(),
    )  # fmt: skip
    run_training(request)
