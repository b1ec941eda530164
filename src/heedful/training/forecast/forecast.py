"""The forecast before training: parameters, operations, memory, time, disk; and afterwards, forecast against fact."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from heedful.data.dataset import PreparedData
from heedful.device import (
    available_memory,
    release_freed_memory,
    matmul_flops,
    memory_in_use,
    peak_memory,
    reset_peak_memory,
)
from heedful.errors import HeedfulError
from heedful.models.build import ParameterCount, build, count_parameters
from heedful.models.model_config import ModelConfig
from heedful.training.finetune import describe_pretrained
from heedful.training.forecast.dry_run import StepCost, dry_run_step
from heedful.training.forecast.timing import StepTiming, measure_timing, batch_elements, sample_batches
from heedful.training.recipe import Recipe, TrainingRecipe
from heedful.training.reporting.events import format_duration
from heedful.training.tasks import get_task

HOLES = {"cpu": 0.4}
"""Share by which a C library's heap is larger than the blocks on it, whose sizes change from step to step, where it
cannot be tried: 0.3 to 0.6 over 20 shapes. A GPU's memory is counted in tensors."""
GROWTH = {"cpu": 0.05}
"""And what it grows by in a long run, beyond what a few steps show."""
FIRST_USE = {"cpu": 30 << 20, "cuda": 40 << 20}
"""What libraries take when first used: known once a step has been tried."""
ATTAINED = {"cpu": 0.5, "cuda": 0.3}
"""Share of a large matrix product's speed that training reaches."""
LONGEST_TRIAL = 20.0
"""Seconds a step may take and still be tried."""
REST = "evaluation and allocator"
SAVED_PER_SECOND = 200e6
MOST_EVALUATIONS = 12
EVALUATIONS_SHARE = 0.04
"""Of the time, at most, unless fewer than two would be left: a run is for learning."""

SURELY_TOO_MUCH = 1.15
"""Times the memory there is: a forecast may be that wrong."""
REMEDY = "lower training.batch_tokens (and raise training.accumulate as much), or model.width"


@dataclass(frozen=True)
class Forecast:
    """What a run will take; bytes, seconds and operations."""

    device: str
    parameters: dict[str, int]
    """By part."""
    memory: dict[str, int]
    """By part, at the highest moment of a step on a largest batch."""
    available: int
    """What the device, or the machine, has to give; what this process holds already counts."""
    flops: float
    """Of a step, on average: forward, backward and optimizer."""
    labels: float
    """Tokens a step learns to predict, on average."""
    checkpoint: int
    """The model's file."""
    disk: int
    """The run's folder, with all that resuming needs."""
    steps: int
    evaluations: int
    seconds_per_step: float
    seconds_per_evaluation: float
    timing: str
    """measured: on a few real steps; estimated: from the operations and the machine's speed."""
    unit: str = "tokens"
    """What the labels are."""
    start: dict[str, Any] | None = None
    """What is taken over from another model, what is new, what is left over."""

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def seconds(self) -> float:
        return self.seconds_for(self.steps)

    def seconds_for(self, steps: int) -> float:
        """Of a run that ends after so many steps, its share of the evaluations included."""
        return steps * (self.seconds_per_step + self.seconds_per_evaluation * self.evaluations / self.steps)

    def steps_within(self, seconds: float) -> int:
        """How many steps there is time for, beside their evaluations."""
        steps = int(seconds * (1 - EVALUATIONS_SHARE) / self.seconds_per_step)
        left = seconds - self.evaluation_count(steps) * self.seconds_per_evaluation
        return max(1, int(left / self.seconds_per_step))

    def evaluation_count(self, steps: int) -> int:
        """As many as show how a run goes, as long as they take little of its time."""
        affordable = EVALUATIONS_SHARE * steps * self.seconds_per_step / self.seconds_per_evaluation
        return max(2, min(MOST_EVALUATIONS, int(affordable)))

    def for_run(self, training: TrainingRecipe) -> Forecast:
        """The same steps, but as many as `training` says."""
        return replace(self, steps=training.steps, evaluations=-(-training.steps // training.evaluate_every))

    @property
    def fits(self) -> bool:
        return self.peak_memory <= self.available

    def check_memory(self) -> None:
        """Stop before the system would, which tells nobody why."""
        if self.peak_memory > SURELY_TOO_MUCH * self.available:
            raise HeedfulError(f"{format_bytes(self.peak_memory)} of memory are needed, {format_bytes(self.available)} there; {REMEDY}")

    def summary(self) -> str:
        """In one line."""
        return (
            f"{sum(self.parameters.values()):,} parameters; about {format_duration(self.seconds)} for {self.steps:,} steps, "
            f"and {format_bytes(self.peak_memory)} of the {format_bytes(self.available)} there are"
        )

    def __str__(self) -> str:
        """As a person would read it."""
        memory = ", ".join(f"{name} {format_bytes(number)}" for name, number in self.memory.items() if number)
        rows = {
            "parameters": f"{sum(self.parameters.values()):,}",
            "a step": f"{self.labels:,.0f} {self.unit} to predict, {format_flops(self.flops)}",
            "memory": f"{format_bytes(self.peak_memory)} at most, of {format_bytes(self.available)} on {self.device}: {memory}",
            "time": f"{format_duration(self.seconds)}: {self.steps:,} steps of {self.seconds_per_step:.3g} s and "
            f"{self.evaluations} evaluations of {self.seconds_per_evaluation:.3g} s ({self.timing})",
            "disk": f"{format_bytes(self.checkpoint)} for the model, {format_bytes(self.disk)} with all that resuming needs",
        }
        if self.start:
            rows = {"start": describe_pretrained(self.start), **rows}
        lines = [f"{name:<12}{value}" for name, value in rows.items()]
        at = 1 + list(rows).index("parameters")
        lines[at:at] = [f"{'':<12}{line}" for line in str(ParameterCount(self.parameters)).splitlines()[:-1]]
        return "\n".join(lines if self.fits else [*lines, f"{'':<12}this will not fit: {REMEDY}"])

    def to_json(self) -> str:
        derived = {"peak_memory": self.peak_memory, "seconds": self.seconds, "fits": self.fits}
        return json.dumps(asdict(self) | derived, indent=2)


def forecast(recipe: Recipe, data: PreparedData, config: ModelConfig, device: torch.device) -> Forecast:
    """Before the model is built: rehearse a step without memory, then, if there is room and time, try a few.

    Nothing is kept, and no random number is used up.
    """
    lesson = get_task(recipe.task).training_components(recipe, data, device)
    epoch = sample_batches(lesson.train)
    rehearsal = dry_run_step(config, recipe.training, lesson.objective, epoch[-1], device)
    share = sum(batch_elements(batch) for batch in epoch) / len(epoch) / batch_elements(epoch[-1])
    flops = rehearsal.flops * share * recipe.training.accumulate
    parts = memory_breakdown(rehearsal, recipe.training, device)
    guess = flops / (matmul_flops(device) * ATTAINED.get(device.type, 0.3))
    labels = recipe.training.accumulate * sum(lesson.objective.token_count(batch) for batch in epoch) / len(epoch)
    if sum(parts.values()) < available_memory(device) and guess < LONGEST_TRIAL:
        pace = measure_timing(recipe.training, lesson, config, device, epoch)
    else:
        judged = min(recipe.training.eval_labels, lesson.valid.labels_per_epoch)
        pace = StepTiming(guess, guess / 3 * judged / labels, None)
    release_freed_memory()
    memory = {"process": memory_in_use(device), **parts}
    if pace.peak is None:
        memory["process"] += FIRST_USE.get(device.type, 0)
    else:  # all of it was seen, but for the weights that an average of the last few will keep
        kept = recipe.training.average_last * rehearsal.weights if recipe.training.average == "last" else 0
        seen = pace.peak + GROWTH.get(device.type, 0) * (pace.peak - memory["process"])
        memory[REST] += max(0, int(seen) + kept - sum(memory.values()))
    checkpoint = model_file_size(config)
    return Forecast(
        device=str(device),
        parameters=count_parameters(config).parts,
        memory=memory,
        available=available_memory(device) + memory_in_use(device),
        flops=flops,
        labels=labels,
        checkpoint=checkpoint,
        disk=checkpoint + recipe.training.keep_checkpoints * (checkpoint + parts["optimizer"] + parts["averages"]),
        steps=1,
        evaluations=1,
        seconds_per_step=pace.step,
        seconds_per_evaluation=pace.evaluation + checkpoint / SAVED_PER_SECOND,
        timing="estimated" if pace.peak is None else "measured",
        unit=lesson.train.unit,
    ).for_run(recipe.training)


def memory_breakdown(step: StepCost, training: TrainingRecipe, device: torch.device) -> dict[str, int]:
    """Bytes at the highest moment: in a step, or in an evaluation while averaged weights stand in for the model's."""
    averages = {"none": 0, "exponential": 1, "last": 1 + training.average_last}[training.average] * step.weights
    gradients = step.gradients if training.accumulate > 1 else 0
    holes = int(HOLES.get(device.type, 0) * step.small)
    return {
        "weights": step.weights,
        "optimizer": step.optimizer,
        "averages": averages,
        "activations and gradients": max(step.step + gradients, step.weights if averages else 0),
        REST: holes,
    }


def model_file_size(config: ModelConfig) -> int:
    """Of model.safetensors: the weights, and a line about each in its head."""
    with torch.device("meta"):
        weights = build(config).state_dict()
    return sum(weight.nbytes + len(name) + 80 for name, weight in weights.items())


@dataclass(frozen=True)
class RunUsage:
    """What a run took."""

    peak_memory: int
    seconds: float
    steps: int
    labels: int
    """Tokens predicted."""


class RunStopwatch:
    """Measures a run from its making to `fact`."""

    def __init__(self, device: torch.device, before: float = 0.0) -> None:
        self.device = device
        reset_peak_memory(device)
        self.start = time.monotonic() - before  # seconds spent before an interruption

    def measure(self, steps: int, labels: int) -> RunUsage:
        return RunUsage(peak_memory(self.device), time.monotonic() - self.start, steps, labels)


class ForecastComparison(NamedTuple):
    """One number, said beforehand and seen afterwards."""

    name: str
    forecast: float
    actual: float
    ratio: float
    """fact / forecast."""

    def formatted(self) -> tuple[str, str, str]:
        """As a person would read it: what, forecast, fact."""
        forms: dict[str, Callable[[float], str]] = {"peak memory": format_bytes, "time": format_duration}
        form = forms.get(self.name, "{:,.0f}".format)
        return self.name, form(self.forecast), f"{form(self.actual)} ({self.ratio - 1:+.0%})"


def compare_forecast(forecast: Forecast, fact: RunUsage) -> list[ForecastComparison]:
    """Forecast against fact, for the steps that were really taken."""
    seconds = forecast.seconds_for(fact.steps)
    pairs: dict[str, tuple[float, float]] = {
        "peak memory": (forecast.peak_memory, fact.peak_memory),
        "time": (seconds, fact.seconds),
        f"{forecast.unit} per second": (forecast.labels * fact.steps / seconds, fact.labels / fact.seconds),
    }
    return [ForecastComparison(name, said, seen, seen / said) for name, (said, seen) in pairs.items()]


def format_flops(number: int | float) -> str:
    """2.5e12 → "2.5 TFLOP"."""
    power = min(5, max(0, int(math.log(max(1.0, number), 1000))))
    return f"{number / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}FLOP"


def format_bytes(number: int | float) -> str:
    """1_500_000 → "1.43 MiB"."""
    power = min(4, max(0, int(math.log(max(1.0, number), 1024))))
    return f"{number / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
