"""Compare two models of one task on the same texts in one run: scores, size and speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from heedful.data.batching import length_buckets
from heedful.evaluation.bleu_tokenizer import choose_bleu_tokenizer
from heedful.evaluation.text_metrics import sample_scores
from heedful.inference.classifier import Classifier
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.inspection.census.census_measurement import pass_lengths, score_pass_states
from heedful.inspection.census.output_scores import OutputScores, output_counts
from heedful.inspection.census.paired_bootstrap import Interval, PairedBootstrap
from heedful.inspection.text_pass import TextPass, pass_states

Example = str | tuple[str, str]
BATCH_TOKENS = 2048
ROUNDS = 5
SPEED_TEXTS, SCORED_TRANSLATIONS = 64, 200


@dataclass(frozen=True)
class ModelFigures:
    """One model's scores, size and speed."""

    parameters: int
    loss: float
    accuracy: float
    bleu: float | None
    """Only for translators, as is chrf: scores of at most `SCORED_TRANSLATIONS` texts, with beam search."""
    chrf: float | None
    texts_per_second: float


@dataclass(frozen=True)
class PruningEffect:
    """Figures of two models, and their differences with intervals."""

    texts: int
    before: ModelFigures
    after: ModelFigures
    loss_change: Interval
    accuracy_change: Interval
    speedup: Interval
    """Time before / time after: median and quartiles over rounds; the rounds of both models alternate."""
    speed_of: str
    """The timed work."""

    def to_json(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "before": vars(self.before),
            "after": vars(self.after),
            "loss_change": self.loss_change.to_json(),
            "accuracy_change": self.accuracy_change.to_json(),
            "speedup": self.speedup.to_json(),
            "speed_of": self.speed_of,
        }

    def __str__(self) -> str:
        before, after = self.before, self.after
        rows = [("", "before", "after", "change")]
        shrinkage = f"{100 * (after.parameters / before.parameters - 1):+.1f}%"
        rows += [("parameters", f"{before.parameters:,}", f"{after.parameters:,}", shrinkage)]
        rows += [("loss", f"{before.loss:.4f}", f"{after.loss:.4f}", _interval(self.loss_change, "+.4f"))]
        points = Interval(*(100 * value for value in self.accuracy_change))
        rows += [("right %", f"{100 * before.accuracy:.2f}", f"{100 * after.accuracy:.2f}", _interval(points, "+.2f"))]
        for name in ("bleu", "chrf"):
            values = getattr(before, name), getattr(after, name)
            if None not in values:
                rows += [(name, f"{values[0]:.1f}", f"{values[1]:.1f}", f"{values[1] - values[0]:+.1f}")]
        speeds = before.texts_per_second, after.texts_per_second
        rows += [("texts/s", f"{speeds[0]:,.1f}", f"{speeds[1]:,.1f}", f"× {_interval(self.speedup, '.2f')}")]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(
            [
                *lines,
                f"on {self.texts:,} texts; speed: {self.speed_of}, median and quartiles of {ROUNDS} alternating rounds",
            ]
        )


def measure_effect(before: TrainedModel, after: TrainedModel, examples: Sequence[Example]) -> PruningEffect:
    """Score and time two models that read texts in the same way."""
    passes = [text_pass for example in examples for text_pass in before.scored_passes(example)]
    scores = [_scores(model, passes) for model in (before, after)]
    counts = output_counts(passes, before.model.config.classes if before.independent_labels else None)
    bootstrap = PairedBootstrap(counts)
    speed_of, call = _timed_call(before, examples, passes)
    on_cpu = before.model.device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter  # CPU time excludes other processes
    times = _alternating_times(lambda: call(before), lambda: call(after), clock)
    figures = [
        ModelFigures(
            sum(weight.numel() for weight in model.model.parameters()),
            float(score.loss.sum() / counts.sum()),
            float(score.correct.sum() / counts.sum()),
            *_translation_scores(model, examples),
            min(SPEED_TEXTS, len(examples)) / median(seconds),
        )
        for model, score, seconds in zip((before, after), scores, zip(*times, strict=True), strict=True)
    ]
    return PruningEffect(
        len(examples),
        figures[0],
        figures[1],
        bootstrap.mean(scores[1].loss - scores[0].loss),
        bootstrap.mean(scores[1].correct - scores[0].correct),
        _median_and_quartiles([before / after for before, after in times]),
        f"{speed_of}, per CPU second" if on_cpu else speed_of,
    )


@torch.inference_mode()
def _scores(model: TrainedModel, passes: Sequence[TextPass]) -> OutputScores:
    loss, correct = np.zeros(len(passes)), np.zeros(len(passes))
    for bucket in length_buckets(pass_lengths(passes), BATCH_TOKENS):
        batch = [passes[index] for index in bucket.tolist()]
        loss[bucket], correct[bucket] = score_pass_states(model, batch, pass_states(model.model, batch))
    return OutputScores(loss, correct)


def _translation_scores(model: TrainedModel, examples: Sequence[Example]) -> tuple[float | None, float | None]:
    if not isinstance(model, Translator):
        return None, None
    sources, targets = (list(side) for side in zip(*examples[:SCORED_TRANSLATIONS], strict=True))
    scores = sample_scores(model.translate(sources), targets, choose_bleu_tokenizer(targets))
    return scores.bleu, scores.chrf


def _timed_call(
    model: TrainedModel, examples: Sequence[Example], passes: Sequence[TextPass]
) -> tuple[str, Callable[[Any], object]]:
    """The name of the timed work, and the call: the task's own where it takes plain texts, else the forward passes."""
    texts = [example if isinstance(example, str) else example[0] for example in examples[:SPEED_TEXTS]]

    def run(model: TrainedModel) -> object:
        if isinstance(model, Translator):
            return model.translate(texts, engine="torch")
        if isinstance(model, Classifier):
            return model.classify(texts)
        return _scores(model, passes[:SPEED_TEXTS])

    names = {"Translator": "translate, beam 4, engine torch", "Classifier": "classify"}
    work = names.get(type(model).__name__, "forward passes")
    return f"{work}, {len(texts)} texts together", run


def _alternating_times(
    first: Callable[[], object], second: Callable[[], object], clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of both calls in each round; a round before the first warms up."""
    rounds = []
    for _ in range(ROUNDS + 1):
        times = []
        for call in (first, second):
            started = clock()
            call()
            times.append(clock() - started)
        rounds.append((times[0], times[1]))
    return rounds[1:]


def _median_and_quartiles(ratios: Sequence[float]) -> Interval:
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).tolist()
    return Interval(middle, low, high)


def _interval(interval: Interval, form: str) -> str:
    return f"{interval.value:{form}} ({interval.low:{form}} … {interval.high:{form}})"
