"""From files to a trained model in a folder: what `heedful train` does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.checkup import check, command_for_more, remarks
from heedful.data.prepare import Prepared, learn_from_pairs, learn_from_text, prepare_pairs, prepare_text
from heedful.data.report import Report as Checked
from heedful.errors import UsageError, nearest
from heedful.evaluation.evaluate import evaluate, judge_split
from heedful.folder import save
from heedful.models.build import build, count
from heedful.models.config import ModelConfig
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.trained import TARGET_TOKENIZER, TOKENIZER, Trained, load
from heedful.training.card import Report, headline, write_card
from heedful.training.choose import (
    MOST_EPOCHS,
    Situation,
    choose_held_out,
    choose_model,
    choose_training,
    choose_vocabulary,
)
from heedful.training.events import Events, JsonLines, Listener, TensorBoard, summary_writer
from heedful.training.loop import Progress, Trainer
from heedful.training.machine import describe_machine, matmul_flops, pick_device
from heedful.training.plan import Forecast, Row, Watch, compare, forecast
from heedful.training.recipe import (
    Recipe,
    known_sections,
    make_recipe,
    read_recipe,
    to_toml,
    with_overrides,
)
from heedful.training.start import check_fit, load_start, vocabulary_of
from heedful.training.tasks import make_task

DEFAULT_SECONDS = 600.0
SHARE_OF_TIME = 0.9
"""Spent in training; the rest is for reading the text before and scoring the model after."""
RECIPE, METRICS = "recipe.toml", "metrics.jsonl"
TASKS = ("translate", "generate")
KINDS = ("transformer", "recurrent")
VOCABULARIES = {"vocabulary", "target_vocabulary"}
"""What a model's configuration has from its tokenizers."""


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


@dataclass(frozen=True)
class Ready:
    """Everything decided and prepared: one word from training."""

    recipe: Recipe
    data: Prepared
    config: ModelConfig
    start: Trained | None
    """The model whose weights to begin with; None: new ones."""
    device: torch.device
    forecast: Forecast

    def make_model(self) -> nn.Module:
        torch.manual_seed(self.recipe.seed)
        model: nn.Module = build(self.config)
        if self.start:
            model.load_state_dict(self.start.model.state_dict())
        return model


def plan(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Forecast:
    """What `train` would take, given the same words: parameters, operations, memory, time, disk."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    return get_ready(starting_settings(wish), wish, Events(*listeners)).forecast


def train(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Trained:
    """Train on files and give back the loaded model: `heedful.train("translate", "train.en", "train.de")`."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    settings = starting_settings(wish)
    folder = free_folder(wish, settings["task"])
    ready = get_ready(settings, wish, Events(*listeners))
    ready.forecast.require_room()
    folder.mkdir(parents=True, exist_ok=True)
    events = Events(*listeners, JsonLines(folder / METRICS), *_tensorboard(wish, folder))
    (folder / RECIPE).write_text(to_toml(ready.recipe), encoding="utf-8")
    for tokenizer, name in zip(ready.data.tokenizers, (TOKENIZER, TARGET_TOKENIZER), strict=False):
        tokenizer.save(folder / name)
    events.emit("ready", folder=str(folder), recipe=ready.recipe.model_dump(mode="json"), **asdict(ready.forecast))
    for line in announce(ready, folder):
        events.emit("note", text=line)
    watch = Watch(ready.device)
    progress = fit(ready, folder, events)
    fact = watch.fact(progress.step, progress.tokens)
    return conclude(ready, progress, compare(ready.forecast, fact), folder, events)


def starting_settings(wish: Wishes) -> dict[str, Any]:
    """The recipe as far as the caller decided it, with every key checked."""
    if wish.kind not in KINDS:
        raise UsageError(f"unknown model '{wish.kind}'; {nearest(wish.kind, KINDS)}")
    if wish.tensorboard:
        summary_writer()  # better refused now than after the text was read
    settings = with_overrides(read_recipe(Path(wish.recipe)) if wish.recipe else {}, list(wish.settings))
    known_sections(settings)
    task = wish.task or settings.get("task")
    if task not in TASKS:
        raise UsageError(f"unknown task '{task}'; {nearest(str(task), TASKS)}")
    given = {"train": wish.files, "valid": wish.valid, "test": wish.test}
    data: dict[str, Any] = {
        name: [str(Path(file).resolve()) for file in files] for name, files in given.items() if files
    }
    if wish.on_bad_line:
        data["on_bad_line"] = wish.on_bad_line
    settings = {**settings, "task": task, "data": {**settings.get("data", {}), **data}}
    if wish.seed is not None:
        settings["seed"] = wish.seed
    if wish.start_from:
        settings["start_from"] = str(Path(wish.start_from).resolve())
    if not settings["data"].get("train"):
        raise UsageError(f"nothing to train on: heedful train {task} FILE …")
    return settings


def free_folder(wish: Wishes, task: str) -> Path:
    """The run's folder-to-be: the one asked for, or the next free name. Nothing is ever overwritten."""
    if wish.out is None:
        return next(path for n in range(1, 100_000) if not (path := Path(f"{task}-{n}")).exists())
    folder = Path(wish.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; choose another --out")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"cannot write to {folder}: {parent} is not a folder that can be written to")
    return folder


def get_ready(settings: dict[str, Any], wish: Wishes, events: Events) -> Ready:
    """Fill in every choice, preparing the data on the way, since later choices depend on it."""
    device = pick_device(wish.device)
    pairs = settings["task"] == "translate"
    folder = settings.get("start_from")
    start = load_start(folder, settings["task"], recurrent=wish.kind == "recurrent") if folder else None
    data_settings = settings["data"]
    found = survey(data_settings, pairs, events)
    data_settings.setdefault("held_out", choose_held_out(settings["task"], found.characters))
    text = settings.setdefault("tokenizer", {})
    text.setdefault("vocabulary", choose_vocabulary(settings["task"], found.characters))
    if start:
        settings["tokenizer"] = vocabulary_of(start, text)
    first = make_recipe({**settings, "model": {"family": "encoder"}, "training": {"steps": 1}})
    data = prepare(first, found, events, start.tokenizers if start else ())
    situation = Situation(
        task=settings["task"],
        recurrent=wish.kind == "recurrent",
        tokens=sum(int(side.lengths.sum()) for side in data.train.sides),
        seconds=wish.seconds or DEFAULT_SECONDS,
        flops=matmul_flops(device),
        gpu=device.type == "cuda",
    )
    return decide(settings, wish, situation, data, device, start)


def decide(
    settings: dict[str, Any],
    wish: Wishes,
    situation: Situation,
    data: Prepared,
    device: torch.device,
    start: Trained | None,
) -> Ready:
    """The model and how to train it: chosen, unless said; and how long, from the forecast."""
    chosen = (
        start.model.config.model_dump(exclude=VOCABULARIES, exclude_none=True) if start else choose_model(situation)
    )
    settings["model"] = {**chosen, **settings.get("model", {})}
    training = settings["training"] = {**choose_training(situation, settings["model"]), **settings.get("training", {})}
    if device.type == "cuda":
        training.setdefault("precision", "bfloat16")
    if situation.task == "generate" and "family" in chosen and chosen["family"] == "decoder":
        settings["model"].setdefault("max_length", training["context"])
    if wish.steps is not None:
        training["steps"] = wish.steps
    trial = make_recipe({**settings, "training": {"steps": 1, **training}})
    config = trial.model_config_for(*(len(tokenizer) for tokenizer in data.tokenizers))
    if start:
        check_fit(config, start)
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


def survey(data: dict[str, Any], pairs: bool, events: Events) -> Checked:
    """Count and examine the text, in one pass, and the files it will be judged on."""
    files, valid, test = ([Path(file) for file in data.get(name, ())] for name in ("train", "valid", "test"))
    return check(
        files,
        "pairs" if pairs else "text",
        held_out=[*valid, *test],
        on_bad_line=data.get("on_bad_line", "fail"),
        stages=events.stage,
    )


def prepare(recipe: Recipe, found: Checked, events: Events, tokenizers: tuple[Tokenizer, ...]) -> Prepared:
    """Learn the tokenizers, unless there are some, encode the text, and say what was dropped and what looks wrong."""
    data, text = recipe.data, recipe.tokenizer
    train, valid, test = ([Path(file) for file in files] for files in (data.train, data.valid, data.test))
    config = TokenizerConfig(**{name: getattr(text, name) for name in TokenizerConfig.model_fields})
    reading: Any = {"on_bad_line": data.on_bad_line, "stages": events.stage}
    learning: Any = {"share": text.sample / max(1, found.characters), **reading}
    held_out = 0.0 if valid else data.held_out
    if recipe.task == "translate":
        tokenizers = tokenizers or learn_from_pairs(train, config, joint=text.joint, held_out=held_out, **learning)
        prepared = prepare_pairs(
            train, valid, tokenizers, held_out=data.held_out, max_length=data.max_length, **reading
        )
    else:
        size = found.characters
        tokenizers = tokenizers or (learn_from_text(train, config, characters=size * (1 - held_out), **learning),)
        prepared = prepare_text(train, valid, tokenizers[0], held_out=data.held_out, characters=size, **reading)
    examples = f"{found.usable:,} pairs" if recipe.task == "translate" else f"{found.documents:,} document(s)"
    events.emit("note", text=f"read {examples}, {found.characters:,} characters")
    said = remarks(found, prepared.dropped, prepared.first_dropped)
    for remark in said:
        events.emit("note", text=str(remark))
    if said:
        events.emit("note", text=f"{command_for_more(found, train, [*valid, *test])} shows all")
    return replace(prepared, remarks=said)


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


def fit(ready: Ready, folder: Path, events: Events) -> Progress:
    """Train, saving the best model on the way."""
    recipe, device = ready.recipe, ready.device
    task = make_task(recipe, ready.data, device)
    trainer = Trainer(
        ready.make_model(), task.objective, task.train, recipe.training, seed=recipe.seed, device=device, events=events
    )
    events.emit("begin")
    try:
        return trainer.run(task.evaluate, lambda best: save(best, folder))
    finally:
        events.emit("end")


def conclude(ready: Ready, progress: Progress, compared: Sequence[Row], folder: Path, events: Events) -> Trained:
    """Score the best model on the test files, or else on what was held out, and write the card."""
    recipe, data = ready.recipe, ready.data
    best = load(folder, device=ready.device)
    scored_on = f"{len(recipe.data.test)} test file(s)" if recipe.data.test else "the validation text"
    scores = (
        evaluate(best, recipe.data.test, on_bad_line=recipe.data.on_bad_line)
        if recipe.data.test
        else judge_split(best, data.valid)
    )
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
    said = {f"{remark.fate}: {remark.what}": f"{remark.rows:,}, first at {remark.first}" for remark in data.remarks}
    return facts | said


def samples(best: Trained, data: Prepared, number: int = 5) -> list[tuple[str, ...]]:
    """What the model makes of validation text."""
    if best.task == "generate":
        return [(best.generate("", tokens=120, seed=seed),) for seed in range(2)]
    shown = data.valid.texts[:number]
    outputs = best.translate([source for source, _ in shown])
    return [(source, output, target) for (source, target), output in zip(shown, outputs, strict=True)]


def _tensorboard(wish: Wishes, folder: Path) -> list[Listener]:
    return [TensorBoard(folder / "tensorboard")] if wish.tensorboard else []
