"""A training run from request to report: what `heedful train` does.

    request    TrainingRequest             the user's arguments
    prepared   setup.prepare_run           the data encoded, every setting chosen
    trainer    build_run, Trainer          model, objective, batches and optimizer
    fit        Trainer.fit, train_step     steps: the objective's loss of the model, backward, update
    report     evaluate_and_report         scores and model card

Special cases join at one point each: other ranks in `join_run`, resuming in `resume_run`, smaller batches after running
out of memory in `train_with_batch_retries`, failures of the machine in `readable_failures`, CUDA graphs in `Trainer`.
A task's objective and batches are the `TrainingComponents` of its file in `tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from heedful.device import peak_memory, reset_peak_memory, select_device
from heedful.errors import OutOfMemoryError, UsageError
from heedful.files import write_atomic
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load
from heedful.model_folder import build_on_meta, write_model
from heedful.models.build import Model
from heedful.syntax import argument
from heedful.training.checkpoint.checkpointer import Checkpointer
from heedful.training.checkpoint.format import Checkpoint, prune_checkpoints, read_checkpoint
from heedful.training.checkpoint.run_manifest import STATE_FOLDER, RunManifest, lock_run_folder
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup, join_process_group
from heedful.training.failures import out_of_memory, readable_failures, with_smaller_batch
from heedful.training.final_evaluation import evaluate_and_report
from heedful.training.forecast.forecast import Forecast, TrainingUsage
from heedful.training.recipe import relative_paths, to_toml
from heedful.training.reporting.display import progress_listeners
from heedful.training.reporting.events import Events, Listener, MetricsFile, TensorBoard
from heedful.training.request import FilePath, Files, TrainingRequest, new_run_settings, requested_settings
from heedful.training.requested_settings import Settings
from heedful.training.resume import can_resume, is_cleaned_up, load_interrupted_run, parse_resume_path
from heedful.training.resume_check import check_resume
from heedful.training.run_catalog import LOG_FILE, RECIPE_FILE
from heedful.training.run_folder import choose_run_folder, claim_run_folder, create_run_folder, remove_run_folder
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun, configure_cpu_memory, describe_run, prepare_data_again, prepare_run
from heedful.training.signals import StopSignal, sigterm_raises_exit
from heedful.training.tasks import get_task
from heedful.training.tasks.task import TrainingComponents
from heedful.training.trainer import Evaluation, Trainer


def train(
    task: str | None = None,
    *files: FilePath,
    valid: Files = (),
    test: Files = (),
    out: FilePath | None = None,
    recipe: FilePath | None = None,
    settings: Settings = (),
    architecture: str = "transformer",
    start_from: FilePath | None = None,
    time: str | int | float | None = None,
    steps: int | None = None,
    seed: int | None = None,
    bleu_tokenizer: str | None = None,
    device: str = "auto",
    columns: str | Sequence[str | int] = (),
    on_bad_line: str | None = None,
    tensorboard: bool = False,
    resume: FilePath | None = None,
    auto_batch: bool = False,
    check_resume: bool = False,
    show_progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> TrainedModel:
    """Train on files and return the trained model: `heedful.train("translate", "train.en", "train.de", time="10m")`.

    `time` is "90s", "10m" or seconds; `columns` are those of a table, as "en,de" or [1, 2]; `settings` are recipe
    settings such as {"model.width": 256}; `architecture` is "transformer" or "recurrent"; `resume="run"` continues the
    run in that folder and needs no other arguments. Progress is shown in a notebook and on a terminal, or as
    `show_progress` says. Under torchrun or SLURM each process calls this with the same arguments.
    """
    request = TrainingRequest(
        task=task, files=files, valid=valid, test=test, out=out, recipe=recipe, settings=settings,
        architecture=architecture, start_from=start_from, time=time, steps=steps, seed=seed,
        bleu_tokenizer=bleu_tokenizer, device=device, columns=columns, on_bad_line=on_bad_line,
        tensorboard=tensorboard, resume=resume, auto_batch=auto_batch, check_resume=check_resume,
        listeners=(*progress_listeners(show_progress), *listeners),
    )  # fmt: skip
    return run_training(request)


def plan(
    task: str | None = None,
    *files: FilePath,
    valid: Files = (),
    test: Files = (),
    recipe: FilePath | None = None,
    settings: Settings = (),
    architecture: str = "transformer",
    start_from: FilePath | None = None,
    time: str | int | float | None = None,
    steps: int | None = None,
    seed: int | None = None,
    bleu_tokenizer: str | None = None,
    device: str = "auto",
    columns: str | Sequence[str | int] = (),
    on_bad_line: str | None = None,
    show_progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> Forecast:
    """Forecast `train` with the same arguments: parameters, operations, memory, time and disk. Nothing is trained."""
    request = TrainingRequest(
        task=task, files=files, valid=valid, test=test, recipe=recipe, settings=settings, architecture=architecture,
        start_from=start_from, time=time, steps=steps, seed=seed, bleu_tokenizer=bleu_tokenizer, device=device,
        columns=columns, on_bad_line=on_bad_line, listeners=(*progress_listeners(show_progress), *listeners),
    )  # fmt: skip
    return prepare_request(request).forecast


def prepare_request(request: TrainingRequest) -> PreparedRun:
    """Prepare the run that `request` describes, without a folder for it."""
    return prepare_run(new_run_settings(request), request, request.events())


def run_training(request: TrainingRequest) -> TrainedModel:
    """Join the process group, if there is one; rank 0 starts or resumes the run, the other ranks follow it."""
    with join_process_group(request.device) as group:
        request = replace(request, device=group.device_for(request.device))
        if not group.is_rank_zero:
            return join_run(request, group)
        # With other ranks this one may be blocked in a collective, where signal handlers do not run.
        with sigterm_raises_exit() if group.size == 1 else nullcontext():
            return start_or_resume(request, group)


def start_or_resume(request: TrainingRequest, group: ProcessGroup) -> TrainedModel:
    """On rank 0: start a new run, or resume the one in the request's folder."""
    if group.size > 1 and (request.auto_batch or request.check_resume):
        options = f"{argument('auto_batch')} and {argument('check_resume')}"
        raise UsageError(f"{options} need a single process: run without torchrun")
    if request.resume is None:
        return train_with_batch_retries(request, group)
    if can_resume(request.resume) or not requested_settings(request):
        return resume_run(request, group)
    return train_with_batch_retries(replace(request, out=request.resume), group)


def train_with_batch_retries(request: TrainingRequest, group: ProcessGroup) -> TrainedModel:
    """Start a run; with `auto_batch`, start over with smaller batches until it fits into memory."""
    settings = new_run_settings(request)
    if group.size > 1 and not get_task(settings["task"]).supports_distributed:
        raise UsageError(f"{settings['task']} is trained by a single process: run it without torchrun")
    choose_run_folder(request.out, settings["task"])  # a folder that is in use is refused before the text is read
    while True:
        try:
            return train_new_run(settings, request, group)
        except OutOfMemoryError as error:
            if not request.auto_batch:
                raise
            settings = with_smaller_batch(settings, error)
        sizes = ", ".join(f"training.{name}={settings['training'][name]}" for name in ("batch_tokens", "accumulate"))
        request.events().note(f"out of memory: starting over with {sizes}")


def train_new_run(settings: dict[str, Any], request: TrainingRequest, group: ProcessGroup) -> TrainedModel:
    """Prepare a run, create its folder with a checkpoint of step 0, and train it."""
    events = request.events()
    with readable_failures(settings):
        prepared = prepare_run(settings, request, events)
        if request.auto_batch and not prepared.forecast.fits:
            raise out_of_memory(settings["training"])
        prepared.forecast.check_memory()
    with claim_run_folder(request.out, prepared.recipe.task) as folder, readable_failures(settings, folder):
        with create_run_folder(prepared, folder) as manifest:
            # A model that will be sharded may not fit on a single device.
            whole = replace(prepared, device=torch.device("cpu")) if group.size > 1 else prepared
            run = build_run(whole, folder, manifest, events)
            path = run.checkpointer.save()
            run.checkpointer.wait()
        events.listeners = (*events.listeners, *file_listeners(request, folder))
        report_setup(prepared, folder, events)
        if group.size > 1:  # every rank, this one included, loads its part of the checkpoint
            del run  # frees the full model first
            checkpoint = read_checkpoint(path, manifest.run_id, trusted=True)
            run = build_run(prepared, folder, manifest, events, group, checkpoint)
        try:
            return train_and_report(run, request)
        except OutOfMemoryError:
            if request.auto_batch:
                remove_run_folder(folder)
            raise


@dataclass(frozen=True)
class Run:
    """A run in progress: the trainer and what it needs to save and evaluate the model."""

    prepared: PreparedRun
    trainer: Trainer
    checkpointer: Checkpointer
    evaluate: Callable[[nn.Module], Evaluation]

    def save_best(self, model: nn.Module) -> None:
        self.checkpointer.manifest.check_folder(self.checkpointer.folder)
        write_model(cast(Model, model), self.checkpointer.folder, self.prepared.files())


def build_run(
    prepared: PreparedRun,
    folder: Path,
    manifest: RunManifest,
    events: Events,
    group: ProcessGroup = SINGLE_PROCESS,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Build the trainer of a run, in the state of `checkpoint`, which rank 0 announces to the other ranks."""
    if checkpoint is not None:
        if group.is_rank_zero:  # the others are in `join_run`
            group.broadcast_from_rank_zero(lambda: str(folder.absolute() / STATE_FOLDER / checkpoint.folder_name))
        group.barrier()  # the other ranks read the data first, which may take longer than a collective's time-out
    components = prepared.training_components()
    trainer = build_trainer(prepared, components, events, group)
    checkpointer = Checkpointer(folder, manifest, trainer)
    if checkpoint is not None:
        checkpointer.restore(checkpoint)
    return Run(prepared, trainer, checkpointer, components.evaluate)


def build_trainer(
    prepared: PreparedRun, components: TrainingComponents, events: Events, group: ProcessGroup = SINGLE_PROCESS
) -> Trainer:
    """The trainer of a prepared run."""
    recipe = prepared.recipe
    configure_cpu_memory(recipe.training, components.train, prepared.device)
    sharded = recipe.training.shard and group.size > 1  # each rank then loads its shard only
    return Trainer(
        build_on_meta(prepared.config) if sharded else prepared.build_model(),
        components.objective,
        components.train,
        recipe.training,
        seed=recipe.seed,
        device=prepared.device,
        events=events,
        process_group=group,
    )


def train_and_report(run: Run, request: TrainingRequest, *, best_is_lost: bool = False) -> TrainedModel:
    """Fit the model, then evaluate the best one and write the report."""
    prepared, folder, events = run.prepared, run.checkpointer.folder, run.trainer.events
    reset_peak_memory(prepared.device)
    progress = fit(run, best_is_lost=best_is_lost)
    if progress.step < prepared.recipe.training.steps:
        patience = f"no improvement in {progress.evaluations_since_best} evaluations (training.patience)"
        best = f"the best model is that of step {progress.best_step:,}"
        events.note(f"stopped    after step {progress.step:,}: {patience}; {best}")
    usage = TrainingUsage(progress.step, progress.tokens, peak_memory(prepared.device))
    events.end_phase("training")
    with readable_failures({}, folder):  # without settings: smaller training batches would not help here
        trained = evaluate_and_report(prepared, progress, usage, folder, events)
    return with_resume_check(trained, folder, request, events)


def fit(run: Run, *, best_is_lost: bool = False) -> RunProgress:
    """Train to the last step, saving checkpoints and the best model on the way; every rank calls this."""
    run.trainer.events.emit("begin")
    try:
        with StopSignal() as stop:
            if run.trainer.process_group.broadcast_from_rank_zero(lambda: best_is_lost):
                run.trainer.replace_best(run.evaluate, run.save_best)
            progress = run.trainer.fit(run.evaluate, run.save_best, lambda: run.checkpointer.after_step(stop))
        run.trainer.process_group.shut_down()
        if stop.received:  # while the last checkpoint was being saved
            raise run.checkpointer.stop_error(stop.received)
        return progress
    finally:
        run.trainer.events.emit("end")


def resume_run(request: TrainingRequest, group: ProcessGroup) -> TrainedModel:
    """Continue a run from its checkpoint; a finished one is loaded as it is."""
    path, events = str(request.resume), request.events()
    folder, _ = parse_resume_path(path)
    if is_cleaned_up(folder):
        return load_finished(folder, select_device(request.device), request, group)
    interrupted = load_interrupted_run(path, requested_settings(request), request.device, events)
    if request.architecture not in ("transformer", interrupted.architecture):
        trained = f"a {interrupted.architecture} model"
        raise UsageError(f"the run in {folder} trains {trained}: leave out {argument('architecture')}")
    if interrupted.is_complete:
        return load_finished(folder, interrupted.device, request, group)
    recipe, checkpoint = interrupted.recipe, interrupted.checkpoint
    with lock_run_folder(folder), readable_failures(recipe.model_dump(), folder):
        prune_checkpoints(folder / STATE_FOLDER, checkpoint, keep=recipe.training.keep_checkpoints)
        events.note(f"resuming after step {checkpoint.step} of {recipe.training.steps}")
        if request.time is not None:
            events.note(f"{argument('time')} has no effect on a resumed run: it became a number of steps when it began")
        write_atomic(folder / RECIPE_FILE, to_toml(recipe, folder))
        prepared = interrupted.prepared(prepare_data_again(recipe, interrupted.tokenizers, events))
        MetricsFile(folder / LOG_FILE).truncate_after(checkpoint.step)
        listeners = (*request.listeners, *file_listeners(request, folder, checkpoint.step))
        events = Events(*listeners, start=request.start, elapsed_before=checkpoint.metadata["seconds"])
        run = build_run(prepared, folder, interrupted.manifest, events, group, checkpoint)
        return train_and_report(run, request, best_is_lost=interrupted.best_is_lost)


def load_finished(folder: Path, device: torch.device, request: TrainingRequest, group: ProcessGroup) -> TrainedModel:
    """Load the model of a finished run, on every rank."""
    events = request.events()
    events.note(f"the run in {folder} is finished")
    group.broadcast_from_rank_zero(lambda: str(folder.absolute()))
    return with_resume_check(load(folder, device=device), folder, request, events)


def join_run(request: TrainingRequest, group: ProcessGroup) -> TrainedModel:
    """On ranks other than 0: train the run that rank 0 announces, from the same checkpoint."""
    path = group.broadcast_from_rank_zero(str)  # rank 0 announces it in `build_run`, or in `load_finished`
    folder, checkpoint_path = parse_resume_path(path)
    if checkpoint_path is not None:
        interrupted = load_interrupted_run(path, {}, request.device, Events(), trusted=True)
        recipe = interrupted.recipe
        with readable_failures(recipe.model_dump(), folder):
            data = get_task(recipe.task).prepare_data(recipe, recipe.data.files(), interrupted.tokenizers, characters=0)
            prepared, checkpoint = interrupted.prepared(data), interrupted.checkpoint
            fit(build_run(prepared, folder, interrupted.manifest, Events(), group, checkpoint))
    return load(folder, device=request.device)


def report_setup(prepared: PreparedRun, folder: Path, events: Events) -> None:
    """Emit the chosen settings and the forecast, before the first step."""
    recipe = relative_paths(prepared.recipe.model_dump(mode="json"), folder)
    events.emit("ready", folder=str(folder), recipe=recipe, **asdict(prepared.forecast))
    for line in describe_run(prepared, folder):
        events.note(line)


def file_listeners(request: TrainingRequest, folder: Path, step: int = 0) -> list[Listener]:
    """Listeners that log into the run folder; TensorBoard's curves continue after `step`."""
    log = MetricsFile(folder / LOG_FILE)
    return [log, TensorBoard(folder / "tensorboard", step)] if request.tensorboard else [log]


def with_resume_check(trained: TrainedModel, folder: Path, request: TrainingRequest, events: Events) -> TrainedModel:
    """Return the model; with `check_resume`, first check that resuming this run is exact and report the result."""
    if request.check_resume:
        events.note(str(check_resume(folder, trained.device)))
    return trained
