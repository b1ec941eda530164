"""How long a step and an evaluation take: from a few real ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from heedful.data.batching import Batches
from heedful.device import release_freed_memory, peak_memory, reset_peak_memory
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.objectives.objective import to_device
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.tasks.task import TrainingComponents
from heedful.training.trainer import Trainer

PASSES = 3
LONGEST_EVALUATION = 5.0
"""Seconds that may be spent on finding out how long an evaluation takes."""


@dataclass(frozen=True)
class StepTiming:
    """Seconds, on average over an epoch."""

    step: float
    evaluation: float
    peak: int | None
    """Bytes held at the highest moment. None: nothing was tried, for want of memory or time, and seconds are worked out
    from the number of operations."""


def sample_batches(batches: Batches, number: int = 100) -> list[Any]:
    """Batches from all over an epoch, the smallest first."""
    plan = batches.plan(0)
    chosen = range(0, len(plan), -(-len(plan) // number))
    return sorted((batches.batch(0, plan[i]) for i in chosen), key=batch_elements)


def batch_elements(batch: Any) -> int:
    """Ids and labels in a batch, padding included: what its cost grows with."""
    return sum(value.numel() for field in fields(batch) if isinstance(value := getattr(batch, field.name), Tensor))


def measure_timing(
    recipe: TrainingRecipe, lesson: TrainingComponents, config: ModelConfig, device: torch.device, epoch: Sequence[Any]
) -> StepTiming:
    """Train a model of this shape for a moment, on batches that stand for an epoch (see `spread`), and evaluate it."""
    release_freed_memory()
    reset_peak_memory(device)
    with torch.random.fork_rng():
        model = build(config)
        trainer = Trainer(model, lesson.objective, lesson.train, recipe, seed=0, device=device, events=Events())
        step = time_steps(trainer, epoch) + time_batch(lesson.train) * recipe.accumulate
        with trainer.averaged_weights():
            evaluate_briefly(model.eval(), lesson, device)
            peak = peak_memory(device)
            return StepTiming(step, time_evaluation(model, lesson, device, recipe.eval_labels), peak)


def time_steps(trainer: Trainer, epoch: Sequence[Any], seconds: float = 2.0) -> float:
    """Seconds a step: the median over a few passes, each over small and large batches in their true shares.

    One pass comes first untimed: the first step of each shape is slow, on a GPU many times so, because kernels are
    loaded and chosen then.
    """
    each = trainer.recipe.accumulate

    def go(batches: Sequence[Any]) -> None:
        stream: Iterator[Any] = iter(batches)
        for _ in range(len(batches) // each):
            result = trainer.step(stream)
        float(result.loss)  # waits for the device

    about = min(_clock(go, [epoch[-1]] * each) for _ in range(2))
    worthwhile = min(24, trainer.recipe.steps // 20)  # a short run deserves a short trial
    number = each * max(2, min(worthwhile, int(seconds / about / (PASSES + 1))))
    chosen = [epoch[int((i + 0.5) / number * len(epoch))] for i in range(number)]
    times = [_clock(go, chosen) for _ in range(PASSES + 1)]
    return statistics.median(times[1:]) * each / number


def time_batch(batches: Batches) -> float:
    """Seconds to put a batch together."""
    plan = batches.plan(0)[:20]
    return _clock(lambda: [batches.batch(0, indices) for indices in plan]) / len(plan)


@torch.inference_mode()
def evaluate_briefly(model: Any, lesson: TrainingComponents, device: torch.device) -> None:
    """As much as shows what an evaluation holds; and what is first is slow, so that timing comes after."""
    float(lesson.objective.loss(model, to_device(sample_batches(lesson.valid, 4)[-1], device)))
    lesson.generate(model, lesson.generated_texts, 2)


@torch.inference_mode()
def time_evaluation(model: Any, lesson: TrainingComponents, device: torch.device, judged: int) -> float:
    """Seconds an evaluation takes: a part of it is tried, and the whole if that is quick: a GPU hardly minds more."""

    def predict(batches: Sequence[Any]) -> None:
        for batch in batches:
            float(lesson.objective.loss(model, to_device(batch, device)))

    some = sample_batches(lesson.valid, 4)
    per_label = _clock(predict, some) / sum(lesson.objective.token_count(batch) for batch in some)
    few = min(64, lesson.generated_texts)
    writing = _clock(lesson.generate, model, few, None) * lesson.generated_texts / few if few else 0.0
    seconds = per_label * min(judged, lesson.valid.labels_per_epoch) + writing
    return _clock(lesson.evaluate, model) if seconds < LONGEST_EVALUATION else seconds


def _clock(work: Callable[..., object], *given: Any) -> float:
    start = time.perf_counter()
    work(*given)
    return time.perf_counter() - start
