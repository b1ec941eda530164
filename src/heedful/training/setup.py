"""Run set-up: check and encode the text, choose every open setting, and forecast time and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.batching import Batches
from heedful.data.corpus_files import as_columns
from heedful.data.dataset import PreparedData
from heedful.data.doctor_report import CorpusReport
from heedful.data.quick_check import check_corpus, data_issues, doctor_command
from heedful.data.training_text import TrainingText, file_digests
from heedful.device import disable_onednn_cache, matmul_flops, retain_freed_memory, select_device
from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.interventions.kinds import describe
from heedful.layers.scores import WITHOUT_CONTENT
from heedful.model_files import TASK_FILE, TRAINING_TEXT_FILE
from heedful.model_folder import tokenizer_files
from heedful.models.build import build
from heedful.models.model_config import MAX_WIDTH, ModelConfig
from heedful.syntax import argument
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import TrainingConditions
from heedful.training.finetune import (
    WeightMatch,
    describe_pretrained,
    load_pretrained,
    match_weights,
    pretrained_model_settings,
    pretrained_tokenizer_settings,
)
from heedful.training.forecast.final_costs import FinalCosts, count_test_texts, measure_final_costs
from heedful.training.forecast.forecast import Forecast, forecast
from heedful.training.forecast.timing import MEASURED_SECONDS
from heedful.training.recipe import DataRecipe, Recipe, TrainingRecipe, make_recipe
from heedful.training.reporting.events import Events
from heedful.training.request import TrainingRequest
from heedful.training.requested_settings import settings_without_effect
from heedful.training.tasks import get_task
from heedful.training.tasks.task import Task, TrainingComponents
from heedful.training.time_limit import TimeAllocation

DEFAULT_SECONDS = 600.0
MEASURED_SHARE = 0.04
"""Share of a short time limit for which steps are measured."""
UNKNOWN_STEPS = 1_000_000
"""Steps in the trial recipe of a run whose length depends on the time a step takes."""
MIN_STEPS = 10
CUDA_GRAPH_LIMIT = 2e11
"""Width² × layers × tokens below which a step is captured as a CUDA graph."""
MIN_COMPILED_SECONDS = 900.0
"""Length of a GPU run from which torch.compile is tried: compiling takes most of a minute."""
COMPILED_SPEEDUP = 0.95
"""Compiled steps must take less than this share of the time of plain ones."""


@dataclass(frozen=True)
class PreparedRun:
    """A run with its data encoded and every setting chosen, ready to be trained."""

    recipe: Recipe
    data: PreparedData
    config: ModelConfig
    pretrained: WeightMatch | None
    """Weights to start from; None: random initialization, or a checkpoint."""
    device: torch.device
    forecast: Forecast

    def build_model(self) -> nn.Module:
        torch.manual_seed(self.recipe.seed)
        model: nn.Module = build(self.config)
        if self.pretrained:
            model.load_state_dict({**model.state_dict(), **self.pretrained.loaded})
        return model

    def files(self) -> dict[str, str]:
        """The content of the model folder's files beside the weights: tokenizers and settings."""
        settings = get_task(self.recipe.task).task_settings(self.recipe, self.data)
        stored = {TASK_FILE: settings, TRAINING_TEXT_FILE: self.data.text}
        files = {name: value.to_file() for name, value in stored.items() if value is not None}
        return tokenizer_files(self.data.tokenizers) | files

    def training_components(self) -> TrainingComponents:
        return get_task(self.recipe.task).training_components(self.recipe, self.data, self.device)


def prepare_run(settings: dict[str, Any], request: TrainingRequest, events: Events) -> PreparedRun:
    """Complete the settings, encoding the data on the way since later choices depend on it."""
    device = select_device(request.device)
    task, recurrent = get_task(settings["task"]), request.architecture == "recurrent"
    start_from = settings.get("start_from")
    base = load_pretrained(start_from, task, recurrent=recurrent) if start_from else None
    if recurrent and not base and not task.has_recurrent_model:
        raise UsageError(f"{task.name} has no recurrent model: leave out {argument('architecture', 'recurrent')}")
    data_settings = settings["data"]
    if base:
        cap_max_length(data_settings, base)
    events.end_phase("start-up")
    for note in settings_without_effect(request.settings, task.name):
        events.note(note)
    report = check_training_files(data_settings, task, events)
    events.end_phase("reading")
    data_settings.setdefault("held_out", task.validation_fraction(report.characters))
    tokenizer = {**task.tokenizer_defaults(report.characters), **settings.get("tokenizer", {})}
    tokenizer.setdefault("vocabulary", task.vocabulary_size(report.characters))
    settings["tokenizer"] = pretrained_tokenizer_settings(base, tokenizer) if base else tokenizer
    # The data depend on neither model nor steps, which are chosen once the data are known.
    data_recipe = make_recipe({**settings, "model": {"family": "encoder"}, "training": {"steps": 1}})
    data = prepare_data(data_recipe, report, events, base.tokenizers if base else ())
    limit = None if "steps" in settings.get("training", {}) else request.seconds or DEFAULT_SECONDS
    conditions = TrainingConditions(
        recurrent=recurrent,
        tokens=sum(int(side.lengths.sum()) for side in data.train.sides),
        seconds=DEFAULT_SECONDS if limit is None else max(1.0, limit - events.seconds),
        flops=matmul_flops(device),
        gpu=device.type == "cuda",
        pretrained=base is not None,
    )
    return choose_settings(settings, task, conditions, data, device, base, limit, events)


def check_width(model: dict[str, Any]) -> None:
    """Raise UsageError for a width from which no learning rate follows."""
    width = model.get("width")
    if width is not None and not (isinstance(width, int | float) and 1 <= width <= MAX_WIDTH):
        raise UsageError(f"model.width must be from 1 to {MAX_WIDTH:,}, got {width}")


def choose_settings(
    settings: dict[str, Any],
    task: Task,
    conditions: TrainingConditions,
    data: PreparedData,
    device: torch.device,
    base: TrainedModel | None,
    limit: float | None,
    events: Events,
) -> PreparedRun:
    """Choose the model and training settings left open; the number of steps follows from the time limit."""
    defaults = pretrained_model_settings(base, task) if base else task.model_defaults(conditions)
    if settings.get("model", {}).get("score") in WITHOUT_CONTENT and defaults.get("positions") == "rotary" and not base:
        defaults["positions"] = "sinusoidal"  # rotary positions turn queries and keys, and these scores read neither
    model = settings["model"] = {**defaults, **settings.get("model", {}), **task.head_settings(data)}
    check_width(model)
    training = settings["training"] = {**task.training_defaults(conditions, model), **settings.get("training", {})}
    if device.type == "cuda":
        training.setdefault("precision", "bfloat16")
        alters = training.get("shard") or training.get("interventions")
        training.setdefault("cuda_graphs", not alters and gains_from_cuda_graphs(model, training))
    derived = task.derived_model_settings(settings, data)
    settings["model"] = {**model, **{name: value for name, value in derived.items() if name not in model}}
    trial = make_recipe({**settings, "training": {"steps": UNKNOWN_STEPS, **training}})
    config = trial.model_config_for(*vocabulary_sizes(data.tokenizers, base))
    pretrained = match_weights(base, config, task, task.reinitialized_prefixes(base, data)) if base else None
    batches = task.training_components(trial, data, device).train
    configure_cpu_memory(trial.training, batches, device)
    measured = MEASURED_SECONDS if limit is None else min(MEASURED_SECONDS, MEASURED_SHARE * limit)
    expected = forecast(trial, data, config, device, seconds=measured)
    seconds = expected.seconds if limit is None else limit
    if device.type == "cuda" and "compile" not in training and seconds >= MIN_COMPILED_SECONDS:
        expected, training["compile"] = try_compiling(trial, expected, data, config, device)
    if pretrained:
        expected = replace(expected, start=pretrained.to_json())
    costs, test_texts = FinalCosts(), count_test_texts(task, trial, data)
    if expected.timing == "measured":
        scored = data.valid.scored_texts if test_texts is None else test_texts
        costs = measure_final_costs(task, data, config, device, at_most=trial.training.steps // 20, scored=scored)
    events.end_phase("dry run")
    allocation = TimeAllocation.within(limit, events.seconds, costs, data.valid.scored_texts, test_texts)
    epochs = task.scaling_rule.most_epochs(pretrained=base is not None)
    useful_steps = epochs * len(batches.plan(0)) // trial.training.accumulate
    set_schedule(training, expected, allocation, useful_steps)
    recipe = make_recipe(settings)
    expected = replace(
        expected.for_run(recipe.training),
        limit=limit,
        setup_phases=dict(events.phases),
        final_phases=allocation.final_phases,
    )
    return PreparedRun(recipe, data, config, pretrained, device, expected)


def set_schedule(training: dict[str, Any], expected: Forecast, allocation: TimeAllocation, useful_steps: int) -> None:
    """Set steps, warm-up, evaluations and calibration texts by the time there is, where the user left them open."""
    if "steps" not in training:
        training["steps"] = max(MIN_STEPS, min(expected.steps_within(allocation.training), useful_steps))
    steps = training["steps"]
    training.setdefault("warmup", min(1000, max(1, steps // 20)))
    training.setdefault("evaluate_every", -(-steps // expected.evaluation_count(steps)))
    training.setdefault("calibration_texts", allocation.calibration_texts)


def configure_cpu_memory(recipe: TrainingRecipe, batches: Batches, device: torch.device) -> None:
    """Set the allocator and oneDNN's kernel cache for training on a CPU. Has to come before the first forward pass."""
    if device.type != "cpu":
        return
    retain_freed_memory()
    if not batches.fixed_shape and recipe.precision == "float32":
        disable_onednn_cache()


def try_compiling(
    recipe: Recipe, plain: Forecast, data: PreparedData, config: ModelConfig, device: torch.device
) -> tuple[Forecast, bool]:
    """The faster forecast of plain and compiled steps, and whether it is the compiled one.

    Not tried with varying batch shapes, each of which would be compiled, nor with recurrent models.
    """
    fixed_shape = get_task(recipe.task).training_components(recipe, data, device).train.fixed_shape
    if (
        recipe.training.shard
        or recipe.training.interventions
        or config.family.startswith("recurrent")
        or not fixed_shape
    ):
        return plain, False
    training = recipe.training.model_copy(update={"compile": True})
    try:
        compiled = forecast(recipe.model_copy(update={"training": training}), data, config, device)
    except (RuntimeError, OSError):  # no compiler, or an unsupported model: compiling is optional
        return plain, False
    faster = compiled.timing == "measured" and compiled.seconds_per_step < COMPILED_SPEEDUP * plain.seconds_per_step
    return (compiled, True) if faster else (plain, False)


def vocabulary_sizes(tokenizers: tuple[Tokenizer, ...], base: TrainedModel | None) -> tuple[int, ...]:
    """Rows of the embedding tables: the tokenizers' sizes, or a pretrained model's, which may have spare rows."""
    if base is None:
        return tuple(len(tokenizer) for tokenizer in tokenizers)
    config = base.model.config
    return (config.vocabulary, config.target_vocabulary) if config.target_vocabulary else (config.vocabulary,)


def cap_max_length(data: dict[str, Any], base: TrainedModel) -> None:
    """Limit data.max_length to the size of a learned position table; a larger value set by the user is an error."""
    config = base.model.config
    if getattr(config, "positions", None) != "learned":
        return
    length = data.setdefault("max_length", min(config.max_length, DataRecipe.model_fields["max_length"].default))
    if isinstance(length, int) and length > config.max_length:
        raise UsageError(f"data.max_length={length} exceeds the {config.max_length} learned positions of {base.folder}")


def gains_from_cuda_graphs(model: dict[str, Any], training: dict[str, Any]) -> bool:
    """Whether steps are so small that kernel launches dominate.

    For larger ones a graph would only hold a second set of activations. Recurrent models read lengths on the host,
    which cannot be captured.
    """
    per_token = model["width"] ** 2 * model.get("layers", 1)
    return not str(model["family"]).startswith("recurrent") and per_token * training["batch_tokens"] < CUDA_GRAPH_LIMIT


def check_training_files(data: dict[str, Any], task: Task, events: Events) -> CorpusReport:
    """Count and check the training text in one pass, and look for held-out text in it."""
    return check_corpus(
        [Path(file) for file in data["train"]],
        task.corpus_kind,
        held_out=[Path(file) for name in task.held_out_files for file in data.get(name, ())],
        columns=as_columns(data.get("columns")),
        on_bad_line=data.get("on_bad_line", "fail"),
        start_progress=events.stage,
    )


def prepare_data(
    recipe: Recipe, report: CorpusReport, events: Events, tokenizers: tuple[Tokenizer, ...]
) -> PreparedData:
    """Train the tokenizers unless they exist, encode the text, and report dropped and suspicious examples."""
    task = get_task(recipe.task)
    files = recipe.data.files(events.stage)
    if not tokenizers:
        tokenizers = task.train_tokenizers(recipe, files, report.characters)
        events.end_phase("vocabulary")
    data = task.prepare_data(recipe, files, tokenizers, report.characters)
    events.note(f"read {task.corpus_size(report)}, {report.characters:,} characters")
    for layout in report.layout[:3]:
        events.note(f"columns    {layout}")
    issues = data_issues(report, data.dropped, data.first_lines, data.truncated)
    for issue in issues:
        events.note(str(issue))
    if issues:
        held_out = [Path(file) for name in task.held_out_files for file in getattr(recipe.data, name)]
        events.note(f"to list all issues: {doctor_command(report, files.train, held_out, recipe.data.columns)}")
    text = TrainingText(
        columns=recipe.data.columns,
        scripts=tuple(column.script for column in report.columns),
        bleu_tokenizer=task.bleu_tokenizer(recipe, data),
        train=file_digests(files.train),
        valid=file_digests(files.valid),
    )
    events.end_phase("encoding")
    return replace(data, issues=issues, text=text)


def prepare_data_again(recipe: Recipe, tokenizers: tuple[Tokenizer, ...], events: Events) -> PreparedData:
    """Encode the text of a run that is resumed, with the run's tokenizers."""
    report = check_training_files(recipe.data.model_dump(), get_task(recipe.task), events)
    return prepare_data(recipe, report, events, tokenizers)


def setting_text(value: Any) -> str:
    """A setting as a reader writes it: sequences by their items, on and off for booleans."""
    if isinstance(value, list | tuple):
        return " + ".join(map(str, value)) or "none"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def describe_run(prepared: PreparedRun, folder: Path) -> list[str]:
    """The chosen settings and the forecast, shown before the first step."""
    recipe, expected = prepared.recipe, prepared.forecast
    model = ", ".join(f"{key} {setting_text(value)}" for key, value in recipe.model.items())
    training = recipe.training
    return [
        *([f"start      {describe_pretrained(expected.start)}"] if expected.start else []),
        *get_task(recipe.task).setup_summary(recipe, prepared.data),
        f"model      {model}",
        *([f"changed    in every step: {describe(training.interventions)}"] if training.interventions else []),
        f"training   {training.steps:,} steps of {training.batch_tokens * training.accumulate:,} tokens, "
        f"{training.optimizer} at {training.learning_rate:.2g} ({training.schedule}), {training.precision}"
        + (", compiled" if training.compile else ""),
        f"forecast   {expected.summary()}",
        f"time       {expected.describe_phases()}",
        *([f"limit      {expected.describe_overrun()}"] if expected.exceeds_limit else []),
        f"folder     {folder}: recipe.toml holds every choice",
    ]
