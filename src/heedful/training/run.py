"""From files to a trained model in a folder: what `heedful train` does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.prepare import Prepared, learn_tokenizers, prepare_pairs, prepare_text
from heedful.data.sources import Pair, is_held_out, read_documents, read_pairs
from heedful.errors import OutOfMemoryError, UsageError, nearest
from heedful.evaluation.evaluate import evaluate, judge_split
from heedful.folder import load_model, replace_file, save
from heedful.models.build import build, count
from heedful.models.config import ModelConfig
from heedful.models.presets import make_config
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.trained import TARGET_TOKENIZER, TOKENIZER, Trained, load
from heedful.training.begun import Begun, is_taken, note_beginning
from heedful.training.card import Report, headline, write_card
from heedful.training.checkpoint import Checkpoint
from heedful.training.choose import MOST_EPOCHS, Situation, choose_model, choose_training, choose_vocabulary
from heedful.training.events import METRICS, Events, JsonLines, Listener, TensorBoard
from heedful.training.faults import out_of_memory, told_plainly, with_smaller_batch
from heedful.training.keeper import Keeper
from heedful.training.loop import Trainer
from heedful.training.machine import describe_machine, matmul_flops, pick_device
from heedful.training.plan import Forecast, Row, Watch, compare, forecast
from heedful.training.progress import Progress
from heedful.training.proof import prove
from heedful.training.recipe import (
    RECIPE,
    Recipe,
    known_sections,
    make_recipe,
    merged,
    read_recipe,
    to_toml,
    with_overrides,
)
from heedful.training.resume import (
    Unfinished,
    has_begun,
    nothing_left,
    pick_up,
    run_and_checkpoint,
    was_tidied,
)
from heedful.training.signals import Stop
from heedful.training.tasks import Task, make_task

DEFAULT_SECONDS = 600.0
SHARE_OF_TIME = 0.9
"""Spent in training; the rest is for reading the text before and scoring the model after."""
TASKS = ("translate", "generate")
KINDS = ("transformer", "recurrent")


@dataclass(frozen=True)
class Wishes:
    """What the caller asked for; what is not said is chosen."""

    task: str | None = None
    files: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    out: str | None = None
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    kind: str = "transformer"
    start_from: str | None = None
    seconds: float | None = None
    steps: int | None = None
    seed: int | None = None
    device: str = "auto"
    on_bad_line: str | None = None
    tensorboard: bool = False
    resume: str | None = None
    auto_batch: bool = False
    prove_resume: bool = False


@dataclass(frozen=True)
class Ready:
    """Everything decided and prepared: one word from training."""

    recipe: Recipe
    data: Prepared
    config: ModelConfig
    start: nn.Module | None
    """The model to begin with; None: a new one."""
    device: torch.device
    forecast: Forecast

    def make_model(self) -> nn.Module:
        torch.manual_seed(self.recipe.seed)
        return self.start or build(self.config)


def plan(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Forecast:
    """What `train` would take, given the same words: parameters, operations, memory, time, disk."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    return get_ready(starting_settings(wish), wish, Events(*listeners)).forecast


def train(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Trained:
    """Train on files and give back the loaded model: `heedful.train("translate", "train.en", "train.de")`.

    `resume="run"` goes on with the run in that folder, and needs neither task nor files.
    """
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    if wish.resume is not None:
        if has_begun(wish.resume) or not said(wish):
            return go_on(wish, listeners)
        wish = replace(wish, out=wish.resume)
    settings = starting_settings(wish)
    folder = free_folder(wish, settings["task"])
    while True:
        try:
            return begin(settings, folder, wish, listeners)
        except OutOfMemoryError as error:
            if not wish.auto_batch:
                raise
            settings = with_smaller_batch(settings, error)
        clear(folder)
        now = ", ".join(f"training.{name}={settings['training'][name]}" for name in ("batch_tokens", "accumulate"))
        Events(*listeners).emit("note", text=f"out of memory: starting over with {now}")


def begin(settings: dict[str, Any], folder: Path, wish: Wishes, listeners: Sequence[Listener]) -> Trained:
    """A new run: everything decided, the folder laid out with a first checkpoint, then trained."""
    with told_plainly(settings, folder):
        ready = get_ready(settings, wish, Events(*listeners))
        if wish.auto_batch and not ready.forecast.fits:
            raise out_of_memory(settings["training"])
        ready.forecast.require_room()
        begun, checkpoint = lay_out(ready, folder)
        events = Events(*listeners, JsonLines(folder / METRICS), *_tensorboard(wish, folder))
        events.emit("ready", folder=str(folder), recipe=ready.recipe.model_dump(mode="json"), **asdict(ready.forecast))
        for line in announce(ready, folder):
            events.emit("note", text=line)
        return carry_through(ready, folder, wish, events, begun, checkpoint)


def lay_out(ready: Ready, folder: Path) -> tuple[Begun, Checkpoint]:
    """The run's folder. The recipe comes last: a folder that has one can be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for tokenizer, name in zip(ready.data.tokenizers, (TOKENIZER, TARGET_TOKENIZER), strict=False):
            tokenizer.save(folder / name)
        begun = note_beginning(
            folder, ready.recipe, ready.config, ready.data.tokenizers, ready.device, asdict(ready.forecast)
        )
        task = make_task(ready.recipe, ready.data, ready.device)
        checkpoint = Keeper(folder, begun, make_trainer(ready, task, Events())).save()
        replace_file(folder / RECIPE, to_toml(ready.recipe))
    except BaseException:
        clear(folder)
        raise
    return begun, checkpoint


def clear(folder: Path) -> None:
    """Take away a run's folder: it was free before."""
    shutil.rmtree(folder, ignore_errors=True)


def go_on(wish: Wishes, listeners: Sequence[Listener]) -> Trained:
    """A run from where it was left; one that is finished is given back as it is."""
    notes, path = Events(*listeners), str(wish.resume)

    def say(text: str) -> None:
        notes.emit("note", text=text)

    folder, _ = run_and_checkpoint(path)
    if was_tidied(folder):
        say(f"the run in {folder} is finished")
        return proved(load(folder, device=pick_device(wish.device)), folder, wish, say)
    run = pick_up(path, said(wish), wish.device, say)
    if wish.kind not in ("transformer", run.kind):
        raise UsageError(f"the run in {folder} trains a {run.kind} model, not a {wish.kind} one")
    if nothing_left(run):
        say(f"the run in {folder} is finished")
        return proved(load(folder, device=run.device), folder, wish, say)
    with told_plainly(run.recipe.model_dump(), folder):
        say(f"going on after step {run.checkpoint.step} of {run.recipe.training.steps}")
        replace_file(folder / RECIPE, to_toml(run.recipe))
        ready = ready_again(run)
        log = JsonLines(folder / METRICS)
        log.cut_back(run.checkpoint.step)
        events = Events(
            *listeners, log, *_tensorboard(wish, folder, run.checkpoint.step), before=run.checkpoint.facts["seconds"]
        )
        return carry_through(ready, folder, wish, events, run.begun, run.checkpoint)


def ready_again(run: Unfinished) -> Ready:
    """What `get_ready` once decided, as the run's folder tells."""
    data, config = encode(run.recipe, run.tokenizers), make_config(run.begun.config)
    expected = Forecast(**run.begun.forecast).for_run(run.recipe.training)
    return Ready(run.recipe, data, config, None, run.device, expected)


def carry_through(
    ready: Ready, folder: Path, wish: Wishes, events: Events, begun: Begun, checkpoint: Checkpoint
) -> Trained:
    """From a checkpoint, be it the first, to the report."""
    watch = Watch(ready.device, before=checkpoint.facts["seconds"])
    progress = fit(ready, folder, events, begun, checkpoint)
    compared = compare(ready.forecast, watch.fact(progress.step, progress.tokens))
    with told_plainly({}, folder):  # smaller batches would be no help here
        trained = conclude(ready, progress, compared, folder, events)
    return proved(trained, folder, wish, lambda text: events.emit("note", text=text))


def proved(trained: Trained, folder: Path, wish: Wishes, say: Callable[[str], object]) -> Trained:
    """The model as it is; and, if wished, the proof that resuming is exact."""
    if wish.prove_resume:
        say(str(prove(folder, trained.device)))
    return trained


def said(wish: Wishes) -> dict[str, Any]:
    """The part of a recipe that the caller decided, with every key checked."""
    if wish.kind not in KINDS:
        raise UsageError(f"unknown model '{wish.kind}'; {nearest(wish.kind, KINDS)}")
    settings = with_overrides(read_recipe(Path(wish.recipe)) if wish.recipe else {}, list(wish.settings))
    known_sections(settings)
    given = {"train": wish.files, "valid": wish.valid, "test": wish.test}
    data: dict[str, Any] = {
        name: [str(Path(file).resolve()) for file in files] for name, files in given.items() if files
    }
    if wish.on_bad_line:
        data["on_bad_line"] = wish.on_bad_line
    changes: dict[str, Any] = {"data": data} if data else {}
    if wish.task is not None:
        changes["task"] = wish.task
    if wish.seed is not None:
        changes["seed"] = wish.seed
    if wish.steps is not None:
        changes["training"] = {"steps": wish.steps}
    return merged(settings, changes)


def starting_settings(wish: Wishes) -> dict[str, Any]:
    """The recipe as far as the caller decided it: a task and some text at least."""
    settings = said(wish)
    task = settings.get("task")
    if task not in TASKS:
        raise UsageError(f"unknown task '{task}'; {nearest(str(task), TASKS)}")
    if not settings.get("data", {}).get("train"):
        raise UsageError(f"nothing to train on: heedful train {task} FILE …")
    return settings


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


def get_ready(settings: dict[str, Any], wish: Wishes, events: Events) -> Ready:
    """Fill in every choice, preparing the data on the way, since later choices depend on it."""
    device = pick_device(wish.device)
    pairs = settings["task"] == "translate"
    data_settings = settings["data"]
    files = [Path(file) for file in data_settings["train"]]
    size = survey(files, pairs, data_settings.get("on_bad_line", "fail"))
    data_settings.setdefault("held_out", 0.1 if not pairs and size.characters < 10_000_000 else 0.02)
    text = settings.setdefault("tokenizer", {})
    text.setdefault("vocabulary", choose_vocabulary(settings["task"], size.characters))
    first = make_recipe({**settings, "model": {"family": "encoder"}, "training": {"steps": 1}})
    data = prepare(first, size)
    dropped = "".join(f"; dropped {number:,}: {reason}" for reason, number in data.dropped.items())
    events.emit("note", text=f"read {size.describe(pairs)}{dropped}")
    situation = Situation(
        task=settings["task"],
        recurrent=wish.kind == "recurrent",
        tokens=sum(int(side.lengths.sum()) for side in data.train.sides),
        seconds=wish.seconds or DEFAULT_SECONDS,
        flops=matmul_flops(device),
        gpu=device.type == "cuda",
    )
    return decide(settings, wish, situation, data, device)


def decide(settings: dict[str, Any], wish: Wishes, situation: Situation, data: Prepared, device: torch.device) -> Ready:
    """The model and how to train it: chosen, unless said; and how long, from the forecast."""
    start = load_model(wish.start_from) if wish.start_from else None
    chosen = start.config.model_dump(exclude_unset=True) if start else choose_model(situation)
    settings["model"] = {**chosen, **settings.get("model", {})}
    training = settings["training"] = {**choose_training(situation, settings["model"]), **settings.get("training", {})}
    if device.type == "cuda":
        training.setdefault("precision", "bfloat16")
    if situation.task == "generate" and "family" in chosen and chosen["family"] == "decoder":
        settings["model"].setdefault("max_length", training["context"])
    trial = make_recipe({**settings, "training": {"steps": 1, **training}})
    config = start.config if start else trial.model_config_for(*(len(tokenizer) for tokenizer in data.tokenizers))
    expected = forecast(trial, data, config, device)
    if "steps" not in training:
        in_time = expected.steps_within(SHARE_OF_TIME * situation.seconds)
        training["steps"] = max(50, min(in_time, most_steps(trial, data, device)))
    training.setdefault("warmup", min(1000, max(1, training["steps"] // 20)))
    training.setdefault("evaluate_every", -(-training["steps"] // expected.worthwhile_evaluations(training["steps"])))
    recipe = make_recipe(settings)
    return Ready(recipe, data, config, start, device, expected.for_run(recipe.training))


def most_steps(recipe: Recipe, data: Prepared, device: torch.device) -> int:
    """Steps until the text has been read as often as is worth it."""
    return MOST_EPOCHS[recipe.task] * len(make_task(recipe, data, device).train.plan(0)) // recipe.training.accumulate


@dataclass(frozen=True)
class Size:
    """How much text there is."""

    examples: int
    characters: int

    def describe(self, pairs: bool) -> str:
        return f"{self.examples:,} {'pairs' if pairs else 'documents'}, {self.characters:,} characters"


def survey(files: Sequence[Path], pairs: bool, on_bad_line: Any) -> Size:
    """One pass over the text."""
    examples = characters = 0
    if pairs:
        for pair in read_pairs(files, on_bad_line=on_bad_line):
            examples += 1
            characters += len(pair.source) + len(pair.target)
    else:
        for text, last in read_documents(files, on_bad_line=on_bad_line):
            examples += last
            characters += len(text)
    return Size(examples, characters)


def prepare(recipe: Recipe, size: Size) -> Prepared:
    """Learn the tokenizers and encode the text."""
    data, text = recipe.data, recipe.tokenizer
    train, valid = ([Path(file) for file in files] for files in (data.train, data.valid))
    config = TokenizerConfig(**{name: getattr(text, name) for name in TokenizerConfig.model_fields})

    def learnt_from() -> Iterator[Pair]:
        """Training pairs only: a vocabulary must not know what is held out either."""
        pairs = read_pairs(train, on_bad_line=data.on_bad_line)
        return (pair for pair in pairs if valid or not is_held_out(pair.source, data.held_out))

    def side(number: int) -> Iterator[str]:
        return ((pair.source, pair.target)[number] for pair in learnt_from())

    def both() -> Iterator[str]:
        return (part for pair in learnt_from() for part in (pair.source, pair.target))

    def running() -> Iterator[str]:
        left = size.characters * (1.0 if valid else 1 - data.held_out)
        for text, _ in read_documents(train, on_bad_line=data.on_bad_line):
            if left <= 0:
                return
            left -= len(text)
            yield text

    if recipe.task == "translate":
        streams = [both] if text.joint else [lambda: side(0), lambda: side(1)]
    else:
        streams = [running]
    return encode(recipe, learn_tokenizers(streams, config, characters=size.characters, sample=text.sample))


def encode(recipe: Recipe, tokenizers: tuple[Tokenizer, ...]) -> Prepared:
    """The text as ids, in stores that are found again as long as nothing changes."""
    data = recipe.data
    train, valid = ([Path(file) for file in files] for files in (data.train, data.valid))
    if recipe.task == "translate":
        return prepare_pairs(
            train,
            valid,
            tokenizers,
            held_out=data.held_out,
            max_length=data.max_length,
            on_bad_line=data.on_bad_line,
        )
    (tokenizer,) = tokenizers
    return prepare_text(train, valid, tokenizer, held_out=data.held_out, on_bad_line=data.on_bad_line)


def announce(ready: Ready, folder: Path) -> list[str]:
    """What was chosen and what it will take, before the first step."""
    recipe, expected = ready.recipe, ready.forecast
    model = ", ".join(f"{key} {value}" for key, value in recipe.model.items())
    training = recipe.training
    return [
        f"model      {model}",
        f"training   {training.steps:,} steps of {training.batch_tokens * training.accumulate:,} tokens, "
        f"{training.optimizer} at {training.learning_rate:.2g} ({training.schedule}), {training.precision}",
        f"forecast   {expected.summary()}",
        f"folder     {folder}: recipe.toml holds every choice",
    ]


def make_trainer(ready: Ready, task: Task, events: Events) -> Trainer:
    recipe, device = ready.recipe, ready.device
    return Trainer(
        ready.make_model(), task.objective, task.train, recipe.training, seed=recipe.seed, device=device, events=events
    )


def fit(ready: Ready, folder: Path, events: Events, begun: Begun, checkpoint: Checkpoint) -> Progress:
    """Train on from a checkpoint, saving the state and the best model on the way."""
    task = make_task(ready.recipe, ready.data, ready.device)
    trainer = make_trainer(ready, task, events)
    keeper = Keeper(folder, begun, trainer)
    keeper.restore(checkpoint)
    events.emit("begin")
    try:
        with Stop() as stop:
            return trainer.run(task.evaluate, lambda best: save(best, folder), lambda: keeper.after_step(stop))
    finally:
        events.emit("end")


def conclude(ready: Ready, progress: Progress, compared: Sequence[Row], folder: Path, events: Events) -> Trained:
    """Score the best model on the test files, or else on what was held out, and write the card."""
    recipe, data = ready.recipe, ready.data
    best = load(folder, device=ready.device)
    scored_on = f"{len(recipe.data.test)} test file(s)" if recipe.data.test else "the validation text"
    scores = evaluate(best, recipe.data.test) if recipe.data.test else judge_split(best, data.valid)
    report = Report(
        task=recipe.task,
        parameters=count(best.model).total,
        data=describe_data(recipe, data),
        recipe=to_toml(recipe),
        scores=scores,
        scored_on=scored_on,
        samples=samples(best, data),
        history=progress.history,
        machine=describe_machine(ready.device),
        best_step=progress.best_step,
        forecast=[row.words() for row in compared],
    )
    card = write_card(report, folder)
    took = ", ".join(f"{name} {fact}" for name, _, fact in report.forecast)
    for line in (
        f"scores     {headline(recipe.task, scores)}, on {scored_on}",
        f"took       {took}",
        f"report     {card}",
    ):
        events.emit("note", text=line)
    events.emit("done", folder=str(folder), card=str(card), scores=scores, compared=[row._asdict() for row in compared])
    return best


def describe_data(recipe: Recipe, data: Prepared) -> dict[str, str]:
    facts = {"training files": ", ".join(Path(file).name for file in recipe.data.train)}
    for name, split in (("training", data.train), ("validation", data.valid)):
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        facts[name] = f"{split.examples:,} examples, {tokens:,} tokens, {split.bytes:,} bytes predicted"
    facts["vocabulary"] = " and ".join(f"{len(tokenizer):,} {recipe.tokenizer.kind}" for tokenizer in data.tokenizers)
    return facts | {f"dropped: {reason}": f"{number:,}" for reason, number in data.dropped.items()}


def samples(best: Trained, data: Prepared, number: int = 5) -> list[tuple[str, ...]]:
    """What the model makes of validation text."""
    if best.task == "generate":
        return [(best.generate("", tokens=120, seed=seed),) for seed in range(2)]
    shown = data.valid.texts[:number]
    outputs = best.translate([source for source, _ in shown])
    return [(source, output, target) for (source, target), output in zip(shown, outputs, strict=True)]


def _tensorboard(wish: Wishes, folder: Path, step: int = 0) -> list[Listener]:
    return [TensorBoard(folder / "tensorboard", step)] if wish.tensorboard else []
