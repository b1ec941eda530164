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

from heedful.data.dataset_preparation import Prepared
from heedful.data.stage_progress import unseen
from heedful.device import pick_device
from heedful.errors import OutOfMemoryError, UsageError
from heedful.files import write_atomic
from heedful.inference.trained import NOTES, TARGET_TOKENIZER, TOKENIZER, Trained, load_as_stored
from heedful.model_folder import save, undrawn
from heedful.models.presets import make_config
from heedful.training.checkpoint.checkpointer import Keeper
from heedful.training.checkpoint.format import Checkpoint, read_checkpoint, tidy
from heedful.training.checkpoint.run_manifest import (
    STATE,
    AnotherIsTrainingError,
    Begun,
    alone_in,
    is_taken,
    note_beginning,
)
from heedful.training.distributed.process_group import ALONE, World, joined
from heedful.training.failures import out_of_memory, told_plainly, with_smaller_batch
from heedful.training.final_evaluation import conclude
from heedful.training.forecast.forecast import Forecast, Watch, compare
from heedful.training.forecast.multi_gpu import Links, Scaled, scale
from heedful.training.recipe import (
    RECIPE,
    to_toml,
)
from heedful.training.reporting.events import METRICS_FILE, Events, Listener, MetricsFile, TensorBoard
from heedful.training.request import Wishes, said, starting_settings
from heedful.training.resume import (
    Unfinished,
    has_begun,
    nothing_left,
    pick_up,
    run_and_checkpoint,
    was_tidied,
)
from heedful.training.resume_check import prove
from heedful.training.run_progress import Progress
from heedful.training.setup import Ready, announce, get_ready, prepare_again
from heedful.training.signals import Stop, unwinding
from heedful.training.tasks import get_task
from heedful.training.tasks.task import TrainingComponents
from heedful.training.trainer import Trainer


def plan(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Forecast:
    """What `train` would take, given the same words: parameters, operations, memory, time, disk."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    return get_ready(starting_settings(wish), wish, Events(*listeners)).forecast


def plan_scaled(
    gpus: int, task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any
) -> Scaled:
    """The same, and what becomes of it on several GPUs."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    ready = get_ready(starting_settings(wish), wish, Events(*listeners))
    training = ready.recipe.training
    links = Links.seen(at_once=training.record or training.compile)
    return scale(ready.forecast, ready.config, gpus, training.accumulate, links)


def train(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Trained:
    """Train on files and give back the loaded model: `heedful.train("translate", "train.en", "train.de")`.

    `resume="run"` goes on with the run in that folder, and needs neither task nor files. Of several processes
    (torchrun, SLURM) the first leads, and the others follow it.
    """
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    with joined(wish.device) as world:
        wish = replace(wish, device=world.device_for(wish.device))
        if world.size > 1:  # each may be waiting where no handler of signals runs
            return lead(wish, listeners, world) if world.is_first else follow(wish, world)
        with unwinding():
            return lead(wish, listeners, world)


def lead(wish: Wishes, listeners: Sequence[Listener], world: World) -> Trained:
    """Begin a run, or go on with one."""
    if world.size > 1 and (wish.auto_batch or wish.prove_resume):
        raise UsageError("--auto-batch and --prove-resume are for one process: leave them out, or do without torchrun")
    if wish.resume is not None:
        if has_begun(wish.resume) or not said(wish):
            return go_on(wish, listeners, world)
        wish = replace(wish, out=wish.resume)
    settings = starting_settings(wish)
    if world.size > 1 and not get_task(settings["task"]).supports_distributed:
        raise UsageError(f"{settings['task']} is trained by one process: leave torchrun out")
    free_folder(wish, settings["task"])  # or say so before the text is read
    while True:
        try:
            return begin(settings, wish, listeners, world)
        except OutOfMemoryError as error:
            if not wish.auto_batch:
                raise
            settings = with_smaller_batch(settings, error)
        now = ", ".join(f"training.{name}={settings['training'][name]}" for name in ("batch_tokens", "accumulate"))
        Events(*listeners).emit("note", text=f"out of memory: starting over with {now}")


def follow(wish: Wishes, world: World) -> Trained:
    """Train what the first process has begun, from the checkpoint it begins with."""
    path = world.hear()
    folder, checkpoint = run_and_checkpoint(path)
    if checkpoint is not None:
        run = pick_up(path, {}, wish.device, lambda _: None, trusted=True)
        with told_plainly(run.recipe.model_dump(), folder):
            data = get_task(run.recipe.task).prepare_data(run.recipe, run.tokenizers, 0, unseen)
            fit(as_begun(run, data), folder, Events(), run.begun, run.checkpoint, world)
    return load_as_stored(folder, device=wish.device)


def begin(settings: dict[str, Any], wish: Wishes, listeners: Sequence[Listener], world: World) -> Trained:
    """A new run: everything decided, the folder laid out with a first checkpoint, then trained."""
    with told_plainly(settings):
        ready = get_ready(settings, wish, Events(*listeners))
        if wish.auto_batch and not ready.forecast.fits:
            raise out_of_memory(settings["training"])
        ready.forecast.require_room()
    with own_folder(wish, ready.recipe.task) as folder, told_plainly(settings, folder):
        begun, checkpoint = lay_out(ready, folder)
        events = Events(*listeners, MetricsFile(folder / METRICS_FILE), *_tensorboard(wish, folder))
        events.emit("ready", folder=str(folder), recipe=ready.recipe.model_dump(mode="json"), **asdict(ready.forecast))
        for line in announce(ready, folder):
            events.emit("note", text=line)
        try:
            return carry_through(ready, folder, wish, events, begun, checkpoint, world)
        except OutOfMemoryError:
            if wish.auto_batch:
                clear(folder)
            raise


@contextmanager
def own_folder(wish: Wishes, task: str) -> Iterator[Path]:
    """The run's folder, for this process alone. Text takes its time to read: one that was free may be so no longer."""
    while True:
        folder = free_folder(wish, task)
        try:
            with alone_in(folder):
                if not is_taken(folder):
                    yield folder
                    return
        except AnotherIsTrainingError:
            if wish.out is not None:
                raise


def lay_out(ready: Ready, folder: Path) -> tuple[Begun, Checkpoint]:
    """The run's folder. The recipe comes last: a folder that has one can be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for tokenizer, name in zip(ready.data.tokenizers, (TOKENIZER, TARGET_TOKENIZER), strict=False):
            tokenizer.save(folder / name)
        notes = get_task(ready.recipe.task).task_settings(ready.recipe, ready.data)
        if notes is not None:
            write_atomic(folder / NOTES, notes.model_dump_json(indent=2) + "\n")
        begun = note_beginning(
            folder, ready.recipe, ready.config, ready.data.tokenizers, ready.device, asdict(ready.forecast)
        )
        aside = replace(ready, device=torch.device("cpu"))  # a model that is cut might not fit elsewhere in one piece
        first = Keeper(folder, begun, make_trainer(aside, aside.lesson(), Events())).save()
        write_atomic(folder / RECIPE, to_toml(ready.recipe))
    except BaseException:
        clear(folder)
        raise
    return begun, read_checkpoint(first, begun.name, trusted=True)


def clear(folder: Path) -> None:
    """Take away a run's folder: it was free before."""
    shutil.rmtree(folder, ignore_errors=True)


def free_folder(wish: Wishes, task: str) -> Path:
    """The run's folder-to-be: the one asked for, or the next free name. Nothing is ever overwritten."""
    if wish.out is None:
        return next(path for n in range(1, 100_000) if not (path := Path(f"{task}-{n}")).exists())
    folder = Path(wish.out)
    if is_taken(folder):
        raise UsageError(f"{folder} exists and is not empty; choose another --out")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"cannot write to {folder}: {parent} is not a folder that can be written to")
    return folder


def go_on(wish: Wishes, listeners: Sequence[Listener], world: World) -> Trained:
    """A run from where it was left; one that is finished is given back as it is."""
    notes, path = Events(*listeners), str(wish.resume)

    def say(text: str) -> None:
        notes.emit("note", text=text)

    folder, _ = run_and_checkpoint(path)

    def finished(device: torch.device) -> Trained:
        say(f"the run in {folder} is finished")
        world.tell(str(folder.absolute()))
        return proved(load_as_stored(folder, device=device), folder, wish, say)

    if was_tidied(folder):
        return finished(pick_device(wish.device))
    run = pick_up(path, said(wish), wish.device, say)
    if wish.kind not in ("transformer", run.kind):
        raise UsageError(f"the run in {folder} trains a {run.kind} model, not a {wish.kind} one")
    if nothing_left(run):
        return finished(run.device)
    with alone_in(folder), told_plainly(run.recipe.model_dump(), folder):
        tidy(folder / STATE, run.checkpoint, keep=run.recipe.training.keep)
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
            elapsed_before=run.checkpoint.facts["seconds"],
        )
        return carry_through(ready, folder, wish, events, run.begun, run.checkpoint, world)


def ready_again(run: Unfinished, events: Events) -> Ready:
    """What `get_ready` once decided, as the run's folder tells."""
    return as_begun(run, prepare_again(run.recipe, run.tokenizers, events))


def as_begun(run: Unfinished, data: Prepared) -> Ready:
    expected = Forecast(**run.begun.forecast).for_run(run.recipe.training)
    return Ready(run.recipe, data, make_config(run.begun.config), None, run.device, expected)


def carry_through(
    ready: Ready, folder: Path, wish: Wishes, events: Events, begun: Begun, checkpoint: Checkpoint, world: World
) -> Trained:
    """From a checkpoint, be it the first, to the report."""
    watch = Watch(ready.device, before=checkpoint.facts["seconds"])
    world.tell(str(folder.absolute() / STATE / checkpoint.folder))
    progress = fit(ready, folder, events, begun, checkpoint, world)
    if progress.step < ready.recipe.training.steps:
        events.emit("note", text=given_up(progress))
    compared = compare(ready.forecast, watch.fact(progress.step, progress.tokens))
    with told_plainly({}, folder):  # smaller batches would be no help here
        trained = conclude(ready, progress, compared, folder, events)
    return proved(trained, folder, wish, lambda text: events.emit("note", text=text))


def given_up(progress: Progress) -> str:
    """Why a run ended before its last step."""
    return (
        f"stopped    after step {progress.step:,}: {progress.stale} evaluations in a row brought nothing better "
        f"(training.patience); the model of step {progress.best_step:,} is kept"
    )


def proved(trained: Trained, folder: Path, wish: Wishes, say: Callable[[str], object]) -> Trained:
    """The model as it is; and, if wished, the proof that resuming is exact."""
    if wish.prove_resume:
        say(str(prove(folder, trained.device)))
    return trained


def make_trainer(ready: Ready, lesson: TrainingComponents, events: Events, world: World = ALONE) -> Trainer:
    recipe = ready.recipe
    return Trainer(
        undrawn(ready.config) if recipe.training.shard and world.size > 1 else ready.make_model(),
        lesson.objective,
        lesson.train,
        recipe.training,
        seed=recipe.seed,
        device=ready.device,
        events=events,
        world=world,
    )


def fit(
    ready: Ready, folder: Path, events: Events, begun: Begun, checkpoint: Checkpoint, world: World = ALONE
) -> Progress:
    """Train on from a checkpoint, saving the state and the best model on the way."""
    lesson = ready.lesson()
    trainer = make_trainer(ready, lesson, events, world)
    keeper = Keeper(folder, begun, trainer)
    keeper.restore(checkpoint)

    def save_best(best: nn.Module) -> None:
        begun.require_there(folder)
        save(best, folder)

    events.emit("begin")
    try:
        with Stop() as stop:
            progress = trainer.run(lesson.evaluate, save_best, lambda: keeper.after_step(stop))
        world.leave()
        if stop.asked:  # while the last state was being saved
            raise keeper.stopped(stop.asked)
        return progress
    finally:
        events.emit("end")


def _tensorboard(wish: Wishes, folder: Path, step: int = 0) -> list[Listener]:
    return [TensorBoard(folder / "tensorboard", step)] if wish.tensorboard else []
