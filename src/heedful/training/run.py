"""From files to a trained model in a folder: what `heedful train` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.prepare import Prepared, learn_tokenizers, prepare_pairs, prepare_text
from heedful.data.sources import read_documents, read_pairs
from heedful.errors import UsageError, nearest
from heedful.folder import load as load_model
from heedful.folder import save
from heedful.models.build import build
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.trained import TARGET_TOKENIZER, TOKENIZER, Trained, load
from heedful.training.choose import Situation, choose_model, choose_training, choose_vocabulary
from heedful.training.events import Events, JsonLines, Listener, TensorBoard
from heedful.training.loop import Progress, Trainer
from heedful.training.machine import matmul_flops, pick_device
from heedful.training.recipe import (
    Recipe,
    TextRecipe,
    make_recipe,
    read_recipe,
    to_toml,
    with_overrides,
)
from heedful.training.tasks import Task, make_task

DEFAULT_SECONDS = 600.0
EVALUATIONS = 12
RECIPE, METRICS = "recipe.toml", "metrics.jsonl"
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
    seconds: float | None = None
    steps: int | None = None
    seed: int | None = None
    device: str = "auto"
    kind: str = "transformer"
    start_from: str | None = None
    on_bad_line: str | None = None
    tensorboard: bool = False


def train(task: str | None = None, *files: str | Path, listeners: Sequence[Listener] = (), **wishes: Any) -> Trained:
    """Train on files and give back the loaded model: `heedful.train("translate", "train.en", "train.de")`."""
    wish = Wishes(task, tuple(str(file) for file in files), **wishes)
    device = pick_device(wish.device)
    if wish.kind not in KINDS:
        raise UsageError(f"unknown model '{wish.kind}'; {nearest(wish.kind, KINDS)}")
    settings = starting_settings(wish)
    folder = new_folder(wish, settings)
    shown: list[Listener] = [*listeners, JsonLines(folder / METRICS)]
    if wish.tensorboard:
        shown.append(TensorBoard(folder / "tensorboard"))
    events = Events(*shown)
    recipe, data, model = complete(settings, wish, device, events)
    (folder / RECIPE).write_text(to_toml(recipe), encoding="utf-8")
    keep_tokenizers(data.tokenizers, folder)
    events.emit("recipe", steps=recipe.training.steps, recipe=recipe.model_dump(mode="json"))
    fit(recipe, data, model, folder, device, events)
    return load(folder, device=device)


def starting_settings(wish: Wishes) -> dict[str, Any]:
    """The recipe as far as the caller decided it."""
    settings = with_overrides(read_recipe(Path(wish.recipe)) if wish.recipe else {}, list(wish.settings))
    task = wish.task or settings.get("task")
    if task not in TASKS:
        raise UsageError(f"unknown task '{task}'; {nearest(str(task), TASKS)}")
    given = {"train": wish.files, "valid": wish.valid, "test": wish.test}
    data = {name: [str(Path(file).resolve()) for file in files] for name, files in given.items() if files}
    if wish.on_bad_line:
        data["on_bad_line"] = wish.on_bad_line  # type: ignore[assignment]
    settings = {**settings, "task": task, "data": {**settings.get("data", {}), **data}}
    if wish.seed is not None:
        settings["seed"] = wish.seed
    if not settings["data"].get("train"):
        raise UsageError(f"nothing to train on: heedful train {task} FILE …")
    return settings


def new_folder(wish: Wishes, settings: dict[str, Any]) -> Path:
    """The run's folder: asked for, or the next free name. Nothing is ever overwritten."""
    if wish.out:
        folder = Path(wish.out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists and is not empty; choose another --out")
    else:
        folder = next(path for n in range(1, 10_000) if not (path := Path(f"{settings['task']}-{n}")).exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None
    return folder


def complete(
    settings: dict[str, Any], wish: Wishes, device: torch.device, events: Events
) -> tuple[Recipe, Prepared, nn.Module]:
    """Fill in every choice, preparing the data on the way, since later choices depend on it."""
    task, pairs = settings["task"], settings["task"] == "translate"
    files = [Path(file) for file in settings["data"]["train"]]
    valid = [Path(file) for file in settings["data"].get("valid", ())]
    size = survey(files, pairs, settings["data"].get("on_bad_line", "fail"))
    settings["data"].setdefault("held_out", 0.1 if not pairs and size.characters < 10_000_000 else 0.02)
    settings.setdefault("tokenizer", {}).setdefault("vocabulary", choose_vocabulary(task, size.characters))
    first = make_recipe({**settings, "model": {"family": "encoder"}, "training": {"steps": 1}})
    events.emit(
        "note", text=f"read {size.examples:,} {'pairs' if pairs else 'documents'}, {size.characters:,} characters"
    )
    data = prepare(first, files, valid, size)
    tokens = sum(int(side.lengths.sum()) for side in data.train.sides)
    situation = Situation(
        task,
        wish.kind == "recurrent",
        tokens,
        wish.seconds or DEFAULT_SECONDS,
        matmul_flops(device),
        device.type == "cuda",
    )
    if wish.start_from:
        settings["model"] = {**load_model(wish.start_from).config.model_dump(exclude_unset=True)}
    settings["model"] = (
        {**choose_model(situation), **settings.get("model", {})} if not wish.start_from else settings["model"]
    )
    training = {**choose_training(situation, settings["model"]), **settings.get("training", {})}
    settings["training"] = training
    recipe = make_recipe({**settings, "training": {**training, "steps": training.get("steps", wish.steps or 1)}})
    torch.manual_seed(recipe.seed)
    target = len(data.tokenizers[1]) if len(data.tokenizers) > 1 else None
    model = build(recipe.model_config_for(len(data.tokenizers[0]), target))
    if "steps" not in training and wish.steps is None:
        seconds = time_step(recipe, data, model, device)
        training["steps"] = max(20, round(situation.seconds * 0.9 / seconds))
    training.setdefault("steps", wish.steps)
    training.setdefault("warmup", min(1000, max(1, training["steps"] // 20)))
    training.setdefault("evaluate_every", max(1, -(-training["steps"] // EVALUATIONS)))
    if device.type == "cuda":
        training.setdefault("precision", "bfloat16")
    return make_recipe(settings), data, model


@dataclass(frozen=True)
class Size:
    examples: int
    characters: int


def survey(files: Sequence[Path], pairs: bool, on_bad_line: Any) -> Size:
    """One pass over the text, to know how much there is."""
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


def prepare(recipe: Recipe, files: list[Path], valid: list[Path], size: Size) -> Prepared:
    data, text = recipe.data, recipe.tokenizer
    bad = data.on_bad_line

    def side(number: int) -> Iterator[str]:
        return ((pair.source, pair.target)[number] for pair in read_pairs(files, on_bad_line=bad))

    def both() -> Iterator[str]:
        return (part for pair in read_pairs(files, on_bad_line=bad) for part in (pair.source, pair.target))

    def running() -> Iterator[str]:
        return (part for part, _ in read_documents(files, on_bad_line=bad))

    if recipe.task == "translate":
        streams = [both] if text.joint else [lambda: side(0), lambda: side(1)]
        tokenizers = learn_tokenizers(streams, plain(text), characters=size.characters, sample=text.sample)
        return prepare_pairs(
            files, valid, tokenizers, held_out=data.held_out, max_length=data.max_length, on_bad_line=bad
        )
    (tokenizer,) = learn_tokenizers([running], plain(text), characters=size.characters, sample=text.sample)
    return prepare_text(files, valid, tokenizer, held_out=data.held_out, on_bad_line=bad)


def plain(text: TextRecipe) -> TokenizerConfig:
    return TokenizerConfig(**{name: getattr(text, name) for name in TokenizerConfig.model_fields})


def time_step(recipe: Recipe, data: Prepared, model: nn.Module, device: torch.device, steps: int = 6) -> float:
    """Seconds a step takes, from a few real ones on a copy of the model."""
    import copy

    settings = recipe.training.with_changes(steps=steps + 2, evaluate_every=1000, average="none", warmup=1000)
    task = make_task(recipe, data, device)
    trainer = Trainer(
        copy.deepcopy(model), task.objective, task.train, settings, seed=0, device=device, events=Events()
    )
    stream = trainer.stream()
    for _ in range(2):
        trainer.step(stream)
    start = time.perf_counter()
    for _ in range(steps):
        float(trainer.step(stream).loss)
    return (time.perf_counter() - start) / steps


def fit(
    recipe: Recipe, data: Prepared, model: nn.Module, folder: Path, device: torch.device, events: Events
) -> Progress:
    """Train, saving the best model on the way."""
    task: Task = make_task(recipe, data, device)
    trainer = Trainer(
        model, task.objective, task.train, recipe.training, seed=recipe.seed, device=device, events=events
    )
    events.emit("begin")
    try:
        return trainer.run(task.evaluate, lambda best: save(best, folder))
    finally:
        events.emit("end")


def keep_tokenizers(tokenizers: tuple[Tokenizer, ...], folder: Path) -> None:
    for tokenizer, name in zip(tokenizers, (TOKENIZER, TARGET_TOKENIZER), strict=False):
        tokenizer.save(folder / name)
