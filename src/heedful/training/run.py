"""From files to a trained model in a folder: what `heedful train` does."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.trained import TARGET_TOKENIZER, TOKENIZER, Trained, load
from heedful.training.card import Report, write_card
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
from heedful.training.recipe import (
    Recipe,
    known_sections,
    make_recipe,
    read_recipe,
    to_toml,
    with_overrides,
)
from heedful.training.start import load_start, take_weights, vocabulary_of
from heedful.training.tasks import make_task

DEFAULT_SECONDS = 600.0
EVALUATIONS = 12
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
    model: nn.Module
    device: torch.device


def train(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Trained:
    """Train on files and give back the loaded model: `heedful.train("translate", "train.en", "train.de")`."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    settings = starting_settings(wish)
    folder = free_folder(wish, settings["task"])
    ready = get_ready(settings, wish, Events(*listeners))
    folder.mkdir(parents=True, exist_ok=True)
    events = Events(*listeners, JsonLines(folder / METRICS), *_tensorboard(wish, folder))
    (folder / RECIPE).write_text(to_toml(ready.recipe), encoding="utf-8")
    for tokenizer, name in zip(ready.data.tokenizers, (TOKENIZER, TARGET_TOKENIZER), strict=False):
        tokenizer.save(folder / name)
    events.emit("ready", folder=str(folder), recipe=ready.recipe.model_dump(mode="json"))
    progress = fit(ready, folder, events)
    return conclude(ready, progress, folder, events)


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
    return Ready(*decide(settings, wish, situation, data, device, start), device)


def decide(
    settings: dict[str, Any],
    wish: Wishes,
    situation: Situation,
    data: Prepared,
    device: torch.device,
    start: Trained | None,
) -> tuple[Recipe, Prepared, nn.Module]:
    """The model and how to train it: chosen, unless said; and how long, from a few steps that are timed."""
    asked = settings.get("model", {})
    chosen = (
        start.model.config.model_dump(exclude=VOCABULARIES, exclude_none=True) if start else choose_model(situation)
    )
    settings["model"] = {**chosen, **asked}
    training = settings["training"] = {**choose_training(situation, settings["model"]), **settings.get("training", {})}
    if device.type == "cuda":
        training.setdefault("precision", "bfloat16")
    if situation.task == "generate" and "family" in chosen and chosen["family"] == "decoder":
        settings["model"].setdefault("max_length", training["context"])
    if wish.steps is not None:
        training["steps"] = wish.steps
    trial = make_recipe({**settings, "training": {"steps": 1, **training}})
    torch.manual_seed(trial.seed)
    model = build(trial.model_config_for(*(len(tokenizer) for tokenizer in data.tokenizers)))
    if start:
        take_weights(model, start, asked)
    if "steps" not in training:
        in_time = round(0.9 * situation.seconds / time_step(trial, data, model, device))
        training["steps"] = max(50, min(in_time, most_steps(trial, data, device)))
    training.setdefault("warmup", min(1000, max(1, training["steps"] // 20)))
    training.setdefault("evaluate_every", -(-training["steps"] // EVALUATIONS))
    return make_recipe(settings), data, model


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


def time_step(recipe: Recipe, data: Prepared, model: nn.Module, device: torch.device) -> float:
    """Seconds a step takes: the median of a few real ones on a copy of the model, after as many to warm up.

    The first steps of each shape are slow, on a GPU many times so: kernels are loaded and chosen then.
    """
    steps = 24 if device.type == "cuda" else 6
    task = make_task(recipe, data, device)
    settings = recipe.training.with_changes(average="none")
    trainer = Trainer(
        copy.deepcopy(model), task.objective, task.train, settings, seed=0, device=device, events=Events()
    )
    stream, times = trainer.stream(), []
    for _ in range(2 * steps):
        start = time.perf_counter()
        float(trainer.step(stream).loss)
        times.append(time.perf_counter() - start)
    return statistics.median(times[steps:])


def fit(ready: Ready, folder: Path, events: Events) -> Progress:
    """Train, saving the best model on the way."""
    recipe, device = ready.recipe, ready.device
    task = make_task(recipe, ready.data, device)
    trainer = Trainer(
        ready.model, task.objective, task.train, recipe.training, seed=recipe.seed, device=device, events=events
    )
    events.emit("begin")
    try:
        return trainer.run(task.evaluate, lambda best: save(best, folder))
    finally:
        events.emit("end")


def conclude(ready: Ready, progress: Progress, folder: Path, events: Events) -> Trained:
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
    )
    card = write_card(report, folder)
    events.emit("done", folder=str(folder), card=str(card), scores=scores)
    return best


def describe_data(recipe: Recipe, data: Prepared) -> dict[str, str]:
    facts = {"training files": ", ".join(Path(file).name for file in recipe.data.train)}
    for name, split in (("training", data.train), ("validation", data.valid)):
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        facts[name] = f"{split.examples:,} examples, {tokens:,} tokens, {split.bytes:,} bytes predicted"
    facts["vocabulary"] = " and ".join(f"{len(tokenizer):,} {recipe.tokenizer.kind}" for tokenizer in data.tokenizers)
    said = {f"{remark.fate}: {remark.what}": remark.how_many for remark in data.remarks}
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
