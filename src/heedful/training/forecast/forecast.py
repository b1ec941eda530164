"""Forecast of a run: parameters, FLOPs, memory, time and disk; afterwards compared with what the run used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch

from heedful.data.dataset import PreparedData
from heedful.device import available_memory, matmul_flops, memory_in_use, release_freed_memory
from heedful.errors import HeedfulError
from heedful.models.build import ParameterCount, build, count_parameters
from heedful.models.model_config import ModelConfig
from heedful.quantities import count, format_bytes, format_duration, format_flops
from heedful.training.finetune import describe_pretrained
from heedful.training.forecast.dry_run import StepCost, dry_run_step
from heedful.training.forecast.timing import (
    MEASURED_SECONDS,
    StepTiming,
    batch_elements,
    measure_timing,
    sample_batches,
)
from heedful.training.recipe import Recipe, TrainingRecipe
from heedful.training.tasks import get_task

FRAGMENTATION = {"cpu": 0.4}
"""Heap of the C library beyond the blocks on it, where it cannot be measured: 0.3 to 0.6 over 20 shapes, since block
sizes change from step to step. GPU memory is counted in tensors."""
HEAP_GROWTH = {"cpu": 0.05}
"""Growth of the heap in a long run beyond that of a few steps."""
LIBRARY_MEMORY = {"cpu": 30 << 20, "cuda": 40 << 20}
"""Bytes that libraries allocate on first use, if no step was run."""
UTILIZATION = {"cpu": 0.5, "cuda": 0.3}
"""Speed of training relative to that of a large matrix product."""
MAX_MEASURED_STEP = 20.0
"""Seconds up to which a step is measured rather than estimated."""
OTHER_MEMORY = "evaluation and allocator"
WRITE_SPEED = 200e6
"""Bytes per second at which a model is saved."""
MAX_EVALUATIONS = 12
MAX_EVALUATION_TIME = 0.04
"""Share of the time, unless that allows fewer than two evaluations."""

LIMIT_MARGIN = 1.05
"""A forecast beyond this multiple of the time limit is reported: the forecast has an error."""
SHORTEST_PHASE = 0.05
"""Seconds from which a phase is listed."""
MEMORY_MARGIN = 1.15
"""A run is refused only beyond this multiple of the available memory: the forecast has an error."""
REMEDY = "lower training.batch_tokens (and raise training.accumulate as much), or model.width"


@dataclass(frozen=True)
class Forecast:
    """The resources a run will use, in bytes, seconds and FLOPs."""

    device: str
    parameters: dict[str, int]
    """Number of parameters, by part of the model."""
    memory: dict[str, int]
    """Bytes by part, at the peak of a step on a largest batch."""
    available: int
    """Memory of the device or machine that is free or used by this process."""
    flops: float
    """Average FLOPs of a step: forward, backward and optimizer."""
    labels: float
    """Average number of target tokens in a step."""
    checkpoint: int
    """Size of the model file."""
    disk: int
    """Size of the run's folder with its checkpoints."""
    steps: int
    evaluations: int
    seconds_per_step: float
    seconds_per_evaluation: float
    timing: str
    """measured: on a few real steps; estimated: from the FLOPs and the speed of the machine."""
    unit: str = "tokens"
    """Unit of the labels, such as tokens or texts."""
    limit: float | None = None
    """The time limit in seconds, if the run has one."""
    setup_phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase before training: measured."""
    final_phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase after training."""
    start: dict[str, Any] | None = None
    """For fine-tuning: the weights loaded from a pretrained model, the new and the unused ones."""

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of every phase of the run, from the command to the report."""
        training = {
            "training": self.steps * self.seconds_per_step,
            "evaluations": self.evaluations * self.seconds_per_evaluation,
        }
        return {**self.setup_phases, **training, **self.final_phases}

    @property
    def seconds(self) -> float:
        """Duration of the run, from the command to the report."""
        return sum(self.phases.values())

    def training_seconds(self, steps: int) -> float:
        """Duration of this many steps and of the evaluations between them."""
        return steps * (self.seconds_per_step + self.seconds_per_evaluation * self.evaluations / self.steps)

    def steps_within(self, seconds: float) -> int:
        """The number of steps that fit into this time together with their evaluations."""
        steps = int(seconds * (1 - MAX_EVALUATION_TIME) / self.seconds_per_step)
        training_seconds = seconds - self.evaluation_count(steps) * self.seconds_per_evaluation
        return max(1, int(training_seconds / self.seconds_per_step))

    def evaluation_count(self, steps: int) -> int:
        """The number of evaluations for this many steps, limited by the time they take."""
        affordable = MAX_EVALUATION_TIME * steps * self.seconds_per_step / self.seconds_per_evaluation
        return max(2, min(MAX_EVALUATIONS, int(affordable)))

    def for_run(self, training: TrainingRecipe) -> Forecast:
        """The forecast with the number of steps and evaluations of `training`."""
        return replace(self, steps=training.steps, evaluations=-(-training.steps // training.evaluate_every))

    @property
    def fits(self) -> bool:
        return self.peak_memory <= self.available

    def check_memory(self) -> None:
        """Raise an error if memory will not suffice: the operating system would kill the process without a message."""
        if self.peak_memory > MEMORY_MARGIN * self.available:
            needed, available = format_bytes(self.peak_memory), format_bytes(self.available)
            raise HeedfulError(f"training needs {needed} of memory, {available} are available; {REMEDY}")

    def summary(self) -> str:
        """The forecast in one line."""
        return (
            f"{sum(self.parameters.values()):,} parameters; {count(self.steps, 'step')} of "
            f"{self.seconds_per_step:.3g} s; {format_bytes(self.peak_memory)} of {format_bytes(self.available)} "
            "of memory"
        )

    @property
    def exceeds_limit(self) -> bool:
        """Whether the run will take clearly longer than its time limit."""
        return self.limit is not None and self.seconds > LIMIT_MARGIN * self.limit

    def describe_overrun(self) -> str:
        """Why the run will exceed its time limit."""
        before, after = sum(self.setup_phases.values()), sum(self.final_phases.values())
        return (
            f"{format_duration(self.limit or 0)} are too short: {format_duration(before)} are over, the phases after "
            f"training take {format_duration(after)} however few texts they use, and training gets "
            f"{count(self.steps, 'step')}; about {format_duration(self.seconds)} in all"
        )

    def describe_phases(self) -> str:
        """The duration of the run and of each phase of it."""
        phases = ", ".join(
            f"{name} {format_duration(seconds)}" for name, seconds in self.phases.items() if seconds >= SHORTEST_PHASE
        )
        return f"{format_duration(self.seconds)} in all: {phases}"

    def __str__(self) -> str:
        """The forecast as a table."""
        memory = ", ".join(f"{name} {format_bytes(number)}" for name, number in self.memory.items() if number)
        rows = {
            "parameters": f"{sum(self.parameters.values()):,}",
            "a step": f"{self.labels:,.0f} {self.unit} to predict, {format_flops(self.flops)}",
            "memory": f"{format_bytes(self.peak_memory)} at most, of {format_bytes(self.available)} on {self.device}: "
            f"{memory}",
            "time": self.describe_phases(),
            "training": f"{count(self.steps, 'step')} of {self.seconds_per_step:.3g} s and "
            f"{count(self.evaluations, 'evaluation')} of {self.seconds_per_evaluation:.3g} s ({self.timing})",
            "disk": f"{format_bytes(self.checkpoint)} for the model, {format_bytes(self.disk)} with checkpoints",
        }
        if self.start:
            rows = {"start": describe_pretrained(self.start), **rows}
        lines = [f"{name:<12}{value}" for name, value in rows.items()]
        index = 1 + list(rows).index("parameters")
        lines[index:index] = [f"{'':<12}{line}" for line in str(ParameterCount(self.parameters)).splitlines()[:-1]]
        return "\n".join(lines if self.fits else [*lines, f"{'':<12}this will not fit: {REMEDY}"])

    def to_json(self) -> str:
        derived = {
            "peak_memory": self.peak_memory,
            "seconds": self.seconds,
            "phases": self.phases,
            "fits": self.fits,
        }
        return json.dumps(asdict(self) | derived)


def forecast(
    recipe: Recipe,
    data: PreparedData,
    config: ModelConfig,
    device: torch.device,
    *,
    seconds: float = MEASURED_SECONDS,
) -> Forecast:
    """Forecast a run: dry-run a step without memory, then measure a few for about `seconds`, if memory and time allow.

    Nothing is kept, and the state of the random number generators does not change.
    """
    components = get_task(recipe.task).training_components(recipe, data, device)
    epoch = sample_batches(components.train)
    cost = dry_run_step(config, recipe.training, components.objective, epoch[-1], device)
    mean_size = sum(batch_elements(batch) for batch in epoch) / len(epoch) / batch_elements(epoch[-1])
    flops = cost.flops * mean_size * recipe.training.accumulate
    parts = memory_breakdown(cost, recipe.training, device)
    estimate = flops / (matmul_flops(device) * UTILIZATION.get(device.type, 0.3))
    labels = recipe.training.accumulate * sum(components.objective.token_count(batch) for batch in epoch) / len(epoch)
    if sum(parts.values()) < available_memory(device) and estimate < MAX_MEASURED_STEP:
        timing = measure_timing(recipe.training, components, config, device, epoch, seconds)
    else:
        eval_labels = min(recipe.training.eval_labels, components.valid.labels_per_epoch)
        timing = StepTiming(estimate, estimate / 3 * eval_labels / labels, None)
    release_freed_memory()
    memory = {"process": memory_in_use(device), **parts}
    if timing.peak is None:
        memory["process"] += LIBRARY_MEMORY.get(device.type, 0)
    else:  # measured, except for the snapshots that an average over the last evaluations will keep
        snapshots = recipe.training.average_last * cost.weights if recipe.training.average == "last" else 0
        measured = timing.peak + HEAP_GROWTH.get(device.type, 0) * (timing.peak - memory["process"])
        memory[OTHER_MEMORY] += max(0, int(measured) + snapshots - sum(memory.values()))
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
        seconds_per_step=timing.step,
        seconds_per_evaluation=timing.evaluation + checkpoint / WRITE_SPEED,
        timing="estimated" if timing.peak is None else "measured",
        unit=components.train.unit,
    ).for_run(recipe.training)


def memory_breakdown(step: StepCost, training: TrainingRecipe, device: torch.device) -> dict[str, int]:
    """Bytes by part at the peak: of a step, or of an evaluation with averaged weights."""
    averages = {"none": 0, "exponential": 1, "last": 1 + training.average_last}[training.average] * step.weights
    gradients = step.gradients if training.accumulate > 1 else 0
    fragmentation = int(FRAGMENTATION.get(device.type, 0) * step.small)
    return {
        "weights": step.weights,
        "optimizer": step.optimizer,
        "averages": averages,
        "activations and gradients": max(step.step + gradients, step.weights if averages else 0),
        OTHER_MEMORY: fragmentation,
    }


def model_file_size(config: ModelConfig) -> int:
    """Bytes of model.safetensors: the weights, and a header entry for each."""
    with torch.device("meta"):
        weights = build(config).state_dict()
    return sum(weight.nbytes + len(name) + 80 for name, weight in weights.items())


class ForecastComparison(NamedTuple):
    """One quantity: its forecast and its actual value."""

    name: str
    forecast: float
    actual: float
    ratio: float
    """actual / forecast"""

    def formatted(self) -> tuple[str, str, str]:
        """Name, forecast and actual value as text."""
        formats: dict[str, Callable[[float], str]] = {"peak": format_bytes, "time": format_duration}
        format_value = formats.get(self.name.partition(" ")[0], "{:,.0f}".format)
        return self.name, format_value(self.forecast), f"{format_value(self.actual)} ({self.ratio - 1:+.0%})"


@dataclass(frozen=True)
class TrainingUsage:
    """The use of resources in training: steps, labels and peak memory in bytes; its seconds are those of the phase."""

    steps: int
    labels: int
    peak_memory: int


def compare_forecast(
    forecast: Forecast, usage: TrainingUsage, seconds: float, phases: Mapping[str, float]
) -> list[ForecastComparison]:
    """Forecast and actual values of a run that took `seconds`; `phases` are those of this process."""
    training = forecast.training_seconds(usage.steps)
    expected = {"training": training, **forecast.final_phases}
    total = sum(forecast.setup_phases.values()) + sum(expected.values())
    pairs: dict[str, tuple[float, float]] = {
        "peak memory": (forecast.peak_memory, usage.peak_memory),
        "time": (total, seconds),
        **{
            f"time of {name}": (value, phases[name])
            for name, value in expected.items()
            if value >= SHORTEST_PHASE and name in phases
        },
    }
    if phases.get("training") and "start-up" in phases:  # a resumed run trains a part of its steps
        pairs[f"{forecast.unit} per second"] = (
            forecast.labels * usage.steps / training,
            usage.labels / phases["training"],
        )
    return [ForecastComparison(name, expected, actual, actual / expected) for name, (expected, actual) in pairs.items()]
