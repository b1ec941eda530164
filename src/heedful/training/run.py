"""From files to a trained model in a folder: what `heedful train` does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.dataset_preparation import PreparedData
from heedful.data.progress import no_progress
from heedful.device import select_device
from heedful.errors import OutOfMemoryError, UsageError
from heedful.files import write_atomic
from heedful.inference.trained import TASK_FILE, TARGET_TOKENIZER_FILE, TOKENIZER_FILE, TrainedModel, load_as_stored
from heedful.model_folder import save, build_without_weights
from heedful.models.presets import make_config
from heedful.training.checkpoint.checkpointer import Checkpointer
from heedful.training.checkpoint.format import Checkpoint, read_checkpoint, prune_checkpoints
from heedful.training.checkpoint.run_manifest import (
    STATE_FOLDER,
    RunFolderLockedError,
    RunManifest,
    lock_run_folder,
    is_occupied,
    write_run_manifest,
)
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup, join_process_group
from heedful.training.failures import out_of_memory, readable_failures, with_smaller_batch
from heedful.training.final_evaluation import evaluate_and_report
from heedful.training.forecast.forecast import Forecast, RunStopwatch, compare_forecast
from heedful.training.forecast.multi_gpu import Interconnect, MultiGpuForecast, forecast_multi_gpu
from heedful.training.recipe import (
    RECIPE,
    to_toml,
)
from heedful.training.reporting.events import METRICS_FILE, Events, Listener, MetricsFile, TensorBoard
from heedful.training.request import TrainingRequest, requested_settings, new_run_settings
from heedful.training.resume import (
    InterruptedRun,
    can_resume,
    is_complete,
    load_interrupted_run,
    run_and_checkpoint,
    is_cleaned_up,
)
from heedful.training.resume_check import check_resume
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun, describe_run, prepare_run, prepare_same_data
from heedful.training.signals import StopSignal, sigterm_raises_exit
from heedful.training.tasks import get_task
from heedful.training.tasks.task import TrainingComponents
from heedful.training.trainer import Trainer


def plan(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Forecast:
    """What `train` would take, given the same words: parameters, operations, memory, time, disk."""
    wish = TrainingRequest(task, tuple(str(file) for file in files), **wishes)
    return prepare_run(new_run_settings(wish), wish, Events(*listeners)).forecast


def plan_scaled(
    gpus: int, task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any
) -> MultiGpuForecast:
    """The same, and what becomes of it on several GPUs."""
    wish = TrainingRequest(task, tuple(str(file) for file in files), **wishes)
    ready = prepare_run(new_run_settings(wish), wish, Events(*listeners))
    training = ready.recipe.training
    links = Interconnect.for_step(gradients_at_end=training.cuda_graphs or training.compile)
    return forecast_multi_gpu(ready.forecast, ready.config, gpus, training.accumulate, links)


def train(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> TrainedModel:
    """Train on files and give back the loaded model: `heedful.train("translate", "train.en", "train.de")`.

    `resume="run"` goes on with the run in that folder, and needs neither task nor files. Of several processes
    (torchrun, SLURM) the first leads, and the others follow it.
    """
    wish = TrainingRequest(task, tuple(str(file) for file in files), **wishes)
    with join_process_group(wish.device) as world:
        wish = replace(wish, device=world.device_for(wish.device))
        if world.size > 1:  # each may be waiting where no handler of signals runs
            return start_or_resume(wish, listeners, world) if world.is_rank_zero else join_run(wish, world)
        with sigterm_raises_exit():
            return start_or_resume(wish, listeners, world)


def start_or_resume(wish: TrainingRequest, listeners: Sequence[Listener], world: ProcessGroup) -> TrainedModel:
    """Begin a run, or go on with one."""
    if world.size > 1 and (wish.auto_batch or wish.check_resume):
        raise UsageError("--auto-batch and --prove-resume are for one process: leave them out, or do without torchrun")
    if wish.resume is not None:
        if can_resume(wish.resume) or not requested_settings(wish):
            return resume_run(wish, listeners, world)
        wish = replace(wish, out=wish.resume)
    settings = new_run_settings(wish)
    if world.size > 1 and not get_task(settings["task"]).supports_distributed:
        raise UsageError(f"{settings['task']} is trained by one process: leave torchrun out")
    choose_run_folder(wish, settings["task"])  # or say so before the text is read
    while True:
        try:
            return start_run(settings, wish, listeners, world)
        except OutOfMemoryError as error:
            if not wish.auto_batch:
                raise
            settings = with_smaller_batch(settings, error)
        now = ", ".join(f"training.{name}={settings['training'][name]}" for name in ("batch_tokens", "accumulate"))
        Events(*listeners).emit("note", text=f"out of memory: starting over with {now}")


def join_run(wish: TrainingRequest, world: ProcessGroup) -> TrainedModel:
    """Train what the first process has begun, from the checkpoint it begins with."""
    path = world.receive_run_path()
    folder, checkpoint = run_and_checkpoint(path)
    if checkpoint is not None:
        run = load_interrupted_run(path, {}, wish.device, lambda _: None, trusted=True)
        with readable_failures(run.recipe.model_dump(), folder):
            data = get_task(run.recipe.task).prepare_data(run.recipe, run.tokenizers, 0, no_progress)
            fit(as_begun(run, data), folder, Events(), run.manifest, run.checkpoint, world)
    return load_as_stored(folder, device=wish.device)


def start_run(settings: dict[str, Any], wish: TrainingRequest, listeners: Sequence[Listener], world: ProcessGroup) -> TrainedModel:
    """A new run: everything decided, the folder laid out with a first checkpoint, then trained."""
    with readable_failures(settings):
        ready = prepare_run(settings, wish, Events(*listeners))
        if wish.auto_batch and not ready.forecast.fits:
            raise out_of_memory(settings["training"])
        ready.forecast.check_memory()
    with claim_run_folder(wish, ready.recipe.task) as folder, readable_failures(settings, folder):
        begun, checkpoint = create_run_folder(ready, folder)
        events = Events(*listeners, MetricsFile(folder / METRICS_FILE), *_tensorboard(wish, folder))
        events.emit("ready", folder=str(folder), recipe=ready.recipe.model_dump(mode="json"), **asdict(ready.forecast))
        for line in describe_run(ready, folder):
            events.emit("note", text=line)
        try:
            return carry_through(ready, folder, wish, events, begun, checkpoint, world)
        except OutOfMemoryError:
            if wish.auto_batch:
                remove_run_folder(folder)
            raise


@contextmanager
def claim_run_folder(wish: TrainingRequest, task: str) -> Iterator[Path]:
    """The run's folder, for this process alone. Text takes its time to read: one that was free may be so no longer."""
    while True:
        folder = choose_run_folder(wish, task)
        try:
            with lock_run_folder(folder):
                if not is_occupied(folder):
                    yield folder
                    return
        except RunFolderLockedError:
            if wish.out is not None:
                raise


def create_run_folder(ready: PreparedRun, folder: Path) -> tuple[RunManifest, Checkpoint]:
    """The run's folder. The recipe comes last: a folder that has one can be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for tokenizer, name in zip(ready.data.tokenizers, (TOKENIZER_FILE, TARGET_TOKENIZER_FILE), strict=False):
            tokenizer.save(folder / name)
        notes = get_task(ready.recipe.task).task_settings(ready.recipe, ready.data)
        if notes is not None:
            write_atomic(folder / TASK_FILE, notes.model_dump_json(indent=2) + "\n")
        begun = write_run_manifest(
            folder, ready.recipe, ready.config, ready.data.tokenizers, ready.device, asdict(ready.forecast)
        )
        aside = replace(ready, device=torch.device("cpu"))  # a model that is cut might not fit elsewhere in one piece
        first = Checkpointer(folder, begun, build_trainer(aside, aside.lesson(), Events())).save()
        write_atomic(folder / RECIPE, to_toml(ready.recipe))
    except BaseException:
        remove_run_folder(folder)
        raise
    return begun, read_checkpoint(first, begun.run_id, trusted=True)


def remove_run_folder(folder: Path) -> None:
    """Take away a run's folder: it was free before."""
    shutil.rmtree(folder, ignore_errors=True)


def choose_run_folder(wish: TrainingRequest, task: str) -> Path:
    """The run's folder-to-be: the one asked for, or the next free name. Nothing is ever overwritten."""
    if wish.out is None:
        return next(path for n in range(1, 100_000) if not (path := Path(f"{task}-{n}")).exists())
    folder = Path(wish.out)
    if is_occupied(folder):
        raise UsageError(f"{folder} exists and is not empty; choose another --out")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"cannot write to {folder}: {parent} is not a folder that can be written to")
    return folder


def resume_run(wish: TrainingRequest, listeners: Sequence[Listener], world: ProcessGroup) -> TrainedModel:
    """A run from where it was left; one that is finished is given back as it is."""
    notes, path = Events(*listeners), str(wish.resume)

    def say(text: str) -> None:
        notes.emit("note", text=text)

    folder, _ = run_and_checkpoint(path)

    def finished(device: torch.device) -> TrainedModel:
        say(f"the run in {folder} is finished")
        world.broadcast_run_path(str(folder.absolute()))
        return proved(load_as_stored(folder, device=device), folder, wish, say)

    if is_cleaned_up(folder):
        return finished(select_device(wish.device))
    run = load_interrupted_run(path, requested_settings(wish), wish.device, say)
    if wish.architecture not in ("transformer", run.architecture):
        raise UsageError(f"the run in {folder} trains a {run.architecture} model, not a {wish.architecture} one")
    if is_complete(run):
        return finished(run.device)
    with lock_run_folder(folder), readable_failures(run.recipe.model_dump(), folder):
        prune_checkpoints(folder / STATE_FOLDER, run.checkpoint, keep=run.recipe.training.keep_checkpoints)
        say(f"going on after step {run.checkpoint.step} of {run.recipe.training.steps}")
        if wish.seconds is not None:
            say("--time was turned into steps when the run began: it changes nothing now")
        write_atomic(folder / RECIPE, to_toml(run.recipe))
        ready = ready_again(run, notes)
        log = MetricsFile(folder / METRICS_FILE)
        log.truncate_after(run.checkpoint.step)
        events = Events(
            *listeners,
            log,
            *_tensorboard(wish, folder, run.checkpoint.step),
            elapsed_before=run.checkpoint.metadata["seconds"],
        )
        return carry_through(ready, folder, wish, events, run.manifest, run.checkpoint, world)


def ready_again(run: InterruptedRun, events: Events) -> PreparedRun:
    """What `get_ready` once decided, as the run's folder tells."""
    return as_begun(run, prepare_same_data(run.recipe, run.tokenizers, events))


def as_begun(run: InterruptedRun, data: PreparedData) -> PreparedRun:
    expected = Forecast(**run.manifest.forecast).for_run(run.recipe.training)
    return PreparedRun(run.recipe, data, make_config(run.manifest.config), None, run.device, expected)


def carry_through(
    ready: PreparedRun, folder: Path, wish: TrainingRequest, events: Events, begun: RunManifest, checkpoint: Checkpoint, process_group: ProcessGroup
) -> TrainedModel:
    """From a checkpoint, be it the first, to the report."""
    watch = RunStopwatch(ready.device, before=checkpoint.metadata["seconds"])
    process_group.broadcast_run_path(str(folder.absolute() / STATE_FOLDER / checkpoint.folder_name))
    progress = fit(ready, folder, events, begun, checkpoint, process_group)
    if progress.step < ready.recipe.training.steps:
        events.emit("note", text=describe_early_stop(progress))
    compared = compare_forecast(ready.forecast, watch.measure(progress.step, progress.tokens))
    with readable_failures({}, folder):  # smaller batches would be no help here
        trained = evaluate_and_report(ready, progress, compared, folder, events)
    return proved(trained, folder, wish, lambda text: events.emit("note", text=text))


def describe_early_stop(progress: RunProgress) -> str:
    """Why a run ended before its last step."""
    return (
        f"stopped    after step {progress.step:,}: {progress.evaluations_since_best} evaluations in a row brought nothing better "
        f"(training.patience); the model of step {progress.best_step:,} is kept"
    )


def proved(trained: TrainedModel, folder: Path, wish: TrainingRequest, say: Callable[[str], object]) -> TrainedModel:
    """The model as it is; and, if wished, the proof that resuming is exact."""
    if wish.check_resume:
        say(str(check_resume(folder, trained.device)))
    return trained


def build_trainer(ready: PreparedRun, lesson: TrainingComponents, events: Events, world: ProcessGroup = SINGLE_PROCESS) -> Trainer:
    recipe = ready.recipe
    return Trainer(
        build_without_weights(ready.config) if recipe.training.shard and world.size > 1 else ready.build_model(),
        lesson.objective,
        lesson.train,
        recipe.training,
        seed=recipe.seed,
        device=ready.device,
        events=events,
        process_group=world,
    )


def fit(
    ready: PreparedRun, folder: Path, events: Events, begun: RunManifest, checkpoint: Checkpoint, process_group: ProcessGroup = SINGLE_PROCESS
) -> RunProgress:
    """Train on from a checkpoint, saving the state and the best model on the way."""
    lesson = ready.lesson()
    trainer = build_trainer(ready, lesson, events, process_group)
    keeper = Checkpointer(folder, begun, trainer)
    keeper.restore(checkpoint)

    def save_best(best: nn.Module) -> None:
        begun.check_folder(folder)
        save(best, folder)

    events.emit("begin")
    try:
        with StopSignal() as stop:
            progress = trainer.fit(lesson.evaluate, save_best, lambda: keeper.after_step(stop))
        process_group.shut_down()
        if stop.received:  # while the last state was being saved
            raise keeper.stop_error(stop.received)
        return progress
    finally:
        events.emit("end")


def _tensorboard(wish: TrainingRequest, folder: Path, step: int = 0) -> list[Listener]:
    return [TensorBoard(folder / "tensorboard", step)] if wish.tensorboard else []
