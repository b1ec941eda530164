"""From wishes to a run ready to begin: the text read and encoded, every choice made, what it takes foreseen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.dataset_preparation import PreparedData
from heedful.data.doctor_report import CorpusReport as Checked
from heedful.data.quick_check import check_corpus, doctor_command, data_issues
from heedful.device import matmul_flops, select_device
from heedful.errors import UsageError
from heedful.inference.trained import TrainedModel
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import TrainingConditions
from heedful.training.finetune import PretrainedWeights, pretrained_model_settings, load_pretrained, match_weights, describe_pretrained, pretrained_tokenizer_settings
from heedful.training.forecast.forecast import Forecast, forecast
from heedful.training.recipe import (
    DataRecipe,
    Recipe,
    make_recipe,
)
from heedful.training.reporting.events import Events
from heedful.training.request import TrainingRequest
from heedful.training.tasks import get_task
from heedful.training.tasks.task import TrainingComponents, Task

DEFAULT_SECONDS = 600.0
SHARE_OF_TIME = 0.9
"""Spent in training; the rest is for reading the text before and scoring the model after."""
NOT_YET_KNOWN = 1_000_000
"""Steps of a run whose length depends on what a step will take."""
CUDA_GRAPH_LIMIT = 2e11
"""Width² × layers × tokens up to which steps are recorded."""
COMPILED_FROM = 900.0
"""Seconds of a run on a GPU from which it is tried whether compiled steps are faster: that takes most of a minute."""


@dataclass(frozen=True)
class PreparedRun:
    """Everything decided and prepared: one word from training."""

    recipe: Recipe
    data: PreparedData
    config: ModelConfig
    start: PretrainedWeights | None
    """The model whose weights to begin with; None: new ones."""
    device: torch.device
    forecast: Forecast

    def build_model(self) -> nn.Module:
        torch.manual_seed(self.recipe.seed)
        model: nn.Module = build(self.config)
        if self.start:
            model.load_state_dict({**model.state_dict(), **self.start.loaded})
        return model

    def lesson(self) -> TrainingComponents:
        return get_task(self.recipe.task).training_components(self.recipe, self.data, self.device)


def prepare_run(settings: dict[str, Any], wish: TrainingRequest, events: Events) -> PreparedRun:
    """Fill in every choice, preparing the data on the way, since later choices depend on it."""
    device = select_device(wish.device)
    task, recurrent = get_task(settings["task"]), wish.architecture == "recurrent"
    folder = settings.get("start_from")
    start = load_pretrained(folder, task, recurrent=recurrent) if folder else None
    data_settings = settings["data"]
    if start:
        cap_max_length(data_settings, start)
    found = check_corpus(data_settings, task, events)
    data_settings.setdefault("held_out", task.validation_fraction(found.characters))
    text = settings["tokenizer"] = {**task.tokenizer_defaults(found.characters), **settings.get("tokenizer", {})}
    text.setdefault("vocabulary", task.vocabulary_size(found.characters))
    if start:
        settings["tokenizer"] = pretrained_tokenizer_settings(start, text)
    first = make_recipe({**settings, "model": {"family": "encoder"}, "training": {"steps": 1}})
    data = prepare_data(first, found, events, start.tokenizers if start else ())
    situation = TrainingConditions(
        recurrent=recurrent,
        tokens=sum(int(side.lengths.sum()) for side in data.train.sides),
        seconds=wish.seconds or DEFAULT_SECONDS,
        flops=matmul_flops(device),
        gpu=device.type == "cuda",
        pretrained=start is not None,
    )
    return choose_settings(settings, task, situation, data, device, start)


def choose_settings(
    settings: dict[str, Any],
    task: Task,
    situation: TrainingConditions,
    data: PreparedData,
    device: torch.device,
    start: TrainedModel | None,
) -> PreparedRun:
    """The model and how to train it: chosen, unless said; and how long, from the forecast."""
    chosen = pretrained_model_settings(start, task) if start else task.model_defaults(situation)
    settings["model"] = {**chosen, **settings.get("model", {}), **task.head_settings(data)}
    training = settings["training"] = {**task.training_defaults(situation, settings["model"]), **settings.get("training", {})}
    if device.type == "cuda":
        training.setdefault("precision", "bfloat16")
        training.setdefault("record", not training.get("shard") and gains_from_cuda_graphs(settings["model"], training))
    settings["model"] |= {k: v for k, v in task.derived_model_settings(settings, data).items() if k not in settings["model"]}
    trial = make_recipe({**settings, "training": {"steps": NOT_YET_KNOWN, **training}})
    config = trial.model_config_for(*vocabulary_sizes(data.tokenizers, start))
    begun = match_weights(start, config, task, task.reinitialized_prefixes(start, data)) if start else None
    expected = forecast(trial, data, config, device)
    seconds = situation.seconds if "steps" not in training else expected.seconds
    if device.type == "cuda" and "compile" not in training and seconds >= COMPILED_FROM:
        expected, training["compile"] = try_compiling(trial, expected, data, config, device)
    if begun:
        expected = replace(expected, start=begun.to_json())
    if "steps" not in training:
        in_time = expected.steps_within(SHARE_OF_TIME * situation.seconds)
        training["steps"] = max(50, min(in_time, max_useful_steps(trial, task, situation, data, device)))
    training.setdefault("warmup", min(1000, max(1, training["steps"] // 20)))
    training.setdefault("evaluate_every", -(-training["steps"] // expected.evaluation_count(training["steps"])))
    recipe = make_recipe(settings)
    return PreparedRun(recipe, data, config, begun, device, expected.for_run(recipe.training))


def try_compiling(
    recipe: Recipe, plain: Forecast, data: PreparedData, config: ModelConfig, device: torch.device
) -> tuple[Forecast, bool]:
    """What compiled steps take and True, if that is clearly less; else what it was, and False. Batches of many shapes
    would be compiled many times, and a recurrence not at all."""
    lesson = get_task(recipe.task).training_components(recipe, data, device)
    if recipe.training.shard or config.family.startswith("recurrent") or not lesson.train.fixed_shape:
        return plain, False
    training = recipe.training.model_copy(update={"compile": True})
    try:
        compiled = forecast(recipe.model_copy(update={"training": training}), data, config, device)
    except (RuntimeError, OSError):  # no compiler there, or one that cannot do this: not needed, only faster
        return plain, False
    faster = compiled.timing == "measured" and compiled.seconds_per_step < 0.95 * plain.seconds_per_step
    return (compiled, True) if faster else (plain, False)


def vocabulary_sizes(tokenizers: tuple[Tokenizer, ...], start: TrainedModel | None) -> tuple[int, ...]:
    """The sizes of the model's tables: those of the tokenizers, but a model that is there may have spare rows."""
    if start is None:
        return tuple(len(tokenizer) for tokenizer in tokenizers)
    config = start.model.config
    return (config.vocabulary, config.target_vocabulary) if config.target_vocabulary else (config.vocabulary,)


def cap_max_length(data: dict[str, Any], start: TrainedModel) -> None:
    """Texts no longer than a learned position table, unless they are said to be: then it is an error."""
    config = start.model.config
    if getattr(config, "positions", None) != "learned":
        return
    wanted = data.setdefault("max_length", min(config.max_length, DataRecipe.model_fields["max_length"].default))
    if isinstance(wanted, int) and wanted > config.max_length:
        raise UsageError(
            f"data.max_length={wanted} is more than the {config.max_length} positions {start.folder} knows"
        )


def gains_from_cuda_graphs(model: dict[str, Any], training: dict[str, Any]) -> bool:
    """Whether steps are so small that a GPU waits for launches: where a step has work for milliseconds it does not,
    and recordings would hold a second set of activations. A recurrence asks the host for lengths: no recording."""
    per_token = model["width"] ** 2 * model.get("layers", 1)
    return not str(model["family"]).startswith("recurrent") and per_token * training["batch_tokens"] < CUDA_GRAPH_LIMIT


def max_useful_steps(recipe: Recipe, task: Task, situation: TrainingConditions, data: PreparedData, device: torch.device) -> int:
    """Steps until the text has been read as often as is worth it."""
    epoch = len(task.training_components(recipe, data, device).train.plan(0))
    return task.max_epochs(situation) * epoch // recipe.training.accumulate


def check_corpus(data: dict[str, Any], task: Task, events: Events) -> Checked:
    """Count and examine the text, in one pass, and the files it will be judged on."""
    files = [Path(file) for file in data["train"]]
    apart = [Path(file) for name in task.held_out_files for file in data.get(name, ())]
    on_bad_line = data.get("on_bad_line", "fail")
    given = {"held_out": apart, "columns": data.get("columns", ()), "on_bad_line": on_bad_line}
    return check_corpus(files, task.corpus_kind, **given, start_progress=events.stage)


def prepare_data(recipe: Recipe, found: Checked, events: Events, tokenizers: tuple[Tokenizer, ...]) -> PreparedData:
    """Learn the tokenizers, unless there are some, encode the text, and say what was dropped and what looks wrong."""
    task = get_task(recipe.task)
    tokenizers = tokenizers or task.train_tokenizers(recipe, found, events.stage)
    prepared = task.prepare_data(recipe, tokenizers, found.characters, events.stage)
    events.emit("note", text=f"read {task.corpus_size(found)}, {found.characters:,} characters")
    said = data_issues(found, prepared.dropped, prepared.first_dropped_lines, prepared.truncated)
    for remark in said:
        events.emit("note", text=str(remark))
    if said:
        train = [Path(file) for file in recipe.data.train]
        apart = [Path(file) for name in task.held_out_files for file in getattr(recipe.data, name)]
        events.emit("note", text=f"{doctor_command(found, train, apart, recipe.data.columns)} shows all")
    return replace(prepared, remarks=said)


def prepare_same_data(recipe: Recipe, tokenizers: tuple[Tokenizer, ...], events: Events) -> PreparedData:
    """The same text as before, by the same tokenizers."""
    return prepare_data(recipe, check_corpus(recipe.data.model_dump(), get_task(recipe.task), events), events, tokenizers)


def describe_run(ready: PreparedRun, folder: Path) -> list[str]:
    """What was chosen and what it will take, before the first step."""
    recipe, expected = ready.recipe, ready.forecast
    model = ", ".join(f"{key} {value}" for key, value in recipe.model.items())
    training = recipe.training
    start = [f"start      {describe_pretrained(expected.start)}"] if expected.start else []
    return [
        *start,
        *get_task(recipe.task).setup_summary(recipe, ready.data),
        f"model      {model}",
        f"training   {training.steps:,} steps of {training.batch_tokens * training.accumulate:,} tokens, "
        f"{training.optimizer} at {training.learning_rate:.2g} ({training.schedule}), {training.precision}"
        + (", compiled" if training.compile else ""),
        f"forecast   {expected.summary()}",
        f"folder     {folder}: recipe.toml holds every choice",
    ]
