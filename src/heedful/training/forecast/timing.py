"""Timing of training steps and evaluations, measured on a few real ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heedful.data.batching import Batches
from heedful.device import peak_memory, release_freed_memory, reset_peak_memory
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.objectives.objective import tensors_of, to_device
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.tasks.task import TrainingComponents
from heedful.training.trainer import Trainer

PASSES = 3
MEASURED_SECONDS = 3.0
"""Seconds for which steps are measured, and up to which an evaluation is measured in full."""
MEASURED_TEXTS = 32
"""Texts generated to estimate the time of an evaluation."""


@dataclass(frozen=True)
class StepTiming:
    """Average seconds of a step and of an evaluation, and the peak memory."""

    step: float
    evaluation: float
    peak: int | None
    """Bytes. None: no steps were run, for lack of memory or time, and the seconds are estimated from the FLOPs."""


def sample_batches(batches: Batches, number: int = 100) -> list[Any]:
    """Evenly spaced batches of an epoch, smallest first."""
    plan = batches.plan(0)
    indices = range(0, len(plan), -(-len(plan) // number))
    return sorted((batches.batch(0, plan[i]) for i in indices), key=batch_elements)


def batch_elements(batch: Any) -> int:
    """Token ids and labels in a batch, padding included: its cost is proportional to them."""
    return sum(tensor.numel() for tensor in tensors_of(batch).values())


def measure_timing(
    recipe: TrainingRecipe,
    components: TrainingComponents,
    config: ModelConfig,
    device: torch.device,
    epoch: Sequence[Any],
    seconds: float,
) -> StepTiming:
    """Train a model of this config for about `seconds`, on batches that represent an epoch (`sample_batches`),
    and evaluate it: in full if that takes no longer."""
    release_freed_memory()
    reset_peak_memory(device)
    with torch.random.fork_rng():
        model = build(config)
        trainer = Trainer(model, components.objective, components.train, recipe, seed=0, device=device, events=Events())
        step = time_steps(trainer, epoch, seconds) + time_batch(components.train) * recipe.accumulate
        with trainer.averaged_weights():
            evaluate_briefly(model.eval(), components, device)
            peak = peak_memory(device)
            return StepTiming(step, time_evaluation(model, components, device, recipe.eval_labels, seconds), peak)


def time_steps(trainer: Trainer, epoch: Sequence[Any], seconds: float) -> float:
    """Seconds per step: the mean over a few passes, each over batches of all sizes in their true proportions.

    A first pass is not timed: the first step of each shape is slow, many times so on a GPU, because kernels are loaded
    and selected then. The mean, not the median: other load on the machine is a part of what steps will take. Where a
    step takes seconds, there is one pass only.
    """
    accumulate = trainer.recipe.accumulate

    def train(batches: Sequence[Any]) -> None:
        stream: Iterator[Any] = iter(batches)
        for _ in range(len(batches) // accumulate):
            result = trainer.step(stream)
        float(result.loss)  # waits for the device

    slowest = min(_time(train, [epoch[-1]] * accumulate) for _ in range(2))  # seconds of a step
    steps = min(24, trainer.recipe.steps // 20)  # a short run gets a short measurement
    number = accumulate * max(2, min(steps, int(seconds / slowest / (PASSES + 1))))
    batches = [epoch[int((i + 0.5) / number * len(epoch))] for i in range(number)]
    passes = PASSES + 1 if slowest * number * (PASSES + 1) / accumulate < 3 * seconds else 1
    times = [_time(train, batches) for _ in range(passes)]
    return statistics.fmean(times[1:] or times) * accumulate / number


def time_batch(batches: Batches) -> float:
    """Seconds to collate a batch."""
    plan = batches.plan(0)[:20]
    return _time(lambda: [batches.batch(0, indices) for indices in plan]) / len(plan)


@torch.inference_mode()
def evaluate_briefly(model: nn.Module, components: TrainingComponents, device: torch.device) -> None:
    """Evaluate enough to reach the peak memory and to warm up before timing."""
    float(components.objective.loss(model, to_device(sample_batches(components.valid, 4)[-1], device)))
    components.generate(model, components.generated_texts, 2)


@torch.inference_mode()
def time_evaluation(
    model: nn.Module, components: TrainingComponents, device: torch.device, eval_labels: int, longest: float
) -> float:
    """Seconds of an evaluation, estimated from a part of it; if that is short, measured in full."""

    def predict(batches: Sequence[Any]) -> None:
        for batch in batches:
            float(components.objective.loss(model, to_device(batch, device)))

    sample = sample_batches(components.valid, 4)
    per_label = _time(predict, sample) / sum(components.objective.token_count(batch) for batch in sample)
    texts = min(MEASURED_TEXTS, components.generated_texts)
    generation = _time(components.generate, model, texts, None) * components.generated_texts / texts if texts else 0.0
    estimate = per_label * min(eval_labels, components.valid.labels_per_epoch) + generation
    return _time(components.evaluate, model) if estimate < longest else estimate


def _time(function: Callable[..., object], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start
