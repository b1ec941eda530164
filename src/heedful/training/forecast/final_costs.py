"""Cost of the phases after training: calibration and final scores, timed on a few validation texts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from heedful.data.corpus_doctor import examine
from heedful.data.corpus_readers import has_tables
from heedful.data.dataset import PreparedData
from heedful.data.progress import no_progress
from heedful.device import release_freed_memory
from heedful.loading import wrap_model
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.training.recipe import Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import Task

FEW, MORE = 4, 40
"""Texts of the two measurements that a cost is fitted to."""
LONGEST_SECONDS = 1.5
"""Seconds that the second measurement may take, judged by the first."""
REPORT_SECONDS = 3.0
"""Seconds to load the best model, draw the plots, measure explanations, write the card and end the process."""


@dataclass(frozen=True)
class LinearCost:
    """Seconds of a phase that works through texts: fixed + per_text · texts."""

    fixed: float = 0.0
    per_text: float = 0.0

    @classmethod
    def measure(cls, work: Callable[[int], object], texts: int) -> LinearCost:
        """Time `work` on few texts, after an untimed call to warm up, and on `texts`; if those are few, just once."""
        if texts <= FEW:
            return cls(_seconds(work, texts))
        work(FEW)
        first = _seconds(work, FEW)
        more = min(texts, FEW * max(2, int(LONGEST_SECONDS / first)))
        per_text = max(0.0, _seconds(work, more) - first) / (more - FEW)
        return cls(max(0.0, first - FEW * per_text), per_text)

    def seconds(self, texts: int) -> float:
        return self.fixed + self.per_text * texts

    def texts_within(self, seconds: float, *, least: int, most: int) -> int:
        """The number of texts whose cost fits into this time, from `least` to `most`."""
        affordable = (seconds - self.fixed) / self.per_text if self.per_text else most
        return int(min(most, max(least, affordable)))


@dataclass(frozen=True)
class FinalCosts:
    """Cost of calibration by the validation texts it is fitted on, and of the final scores by the texts scored."""

    calibration: LinearCost = LinearCost()
    scores: LinearCost = LinearCost()


def measure_final_costs(
    task: Task, data: PreparedData, config: ModelConfig, device: torch.device, *, at_most: int, scored: int
) -> FinalCosts:
    """Calibrate and score an untrained model on a few validation texts: fewer for a short run that scores few.

    It decodes to the length limit, so the cost is an upper bound. Nothing is kept, and the state of the random number
    generators does not change.
    """
    total = data.valid.scored_texts
    texts = min(total, MORE, max(2 * FEW, at_most, scored // MORE))
    with torch.random.fork_rng():
        trial = wrap_model(build(config).to(device).eval(), data.tokenizers)
        calibration = LinearCost.measure(partial(task.calibrate, trial, data, no_progress), texts)
        scores = LinearCost.measure(
            lambda number: task.evaluate_split(trial, data.valid, EvaluationOptions(share=number / total)), texts
        )
    release_freed_memory()
    return FinalCosts(calibration, scores)


def count_test_texts(task: Task, recipe: Recipe, data: PreparedData) -> int | None:
    """The number of test texts, in the unit of `Split.scored_texts`; None without test files of the task's text."""
    files = recipe.data.test
    if not files or "test" not in task.held_out_files:
        return None
    report = examine(
        files, kind=task.corpus_kind, on_bad_line=recipe.data.on_bad_line, max_measured=1,
        columns=recipe.data.columns if has_tables(files) else (),
    )  # fmt: skip
    if task.corpus_kind != "text":
        return report.usable
    return math.ceil(data.valid.scored_texts * report.characters / max(1, data.valid.size.characters))


def _seconds(work: Callable[[int], object], texts: int) -> float:
    start = time.perf_counter()
    work(texts)
    return time.perf_counter() - start
