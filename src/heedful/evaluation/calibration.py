"""Calibration: of the words predicted with probability 0.8, are 80% correct?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.pair_dataset import PairBatches
from heedful.inspection.attention_alignment import TranslationModel
from heedful.inspection.confidence import EPSILON, Confidence, fit_confidence
from heedful.objectives.objective import to_device
from heedful.text.special_tokens import PAD
from heedful.text.word_tokens import Unit, split_words

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Reliability curve: predictions in bins of equal width by probability; empty bins are left out."""

    confidence: list[float]
    """Mean predicted probability of each bin."""
    accuracy: list[float]
    """Share of correct predictions of each bin."""
    count: list[int]

    @property
    def error(self) -> float:
        """Expected calibration error: Σ_b n_b / n · |accuracy_b − confidence_b|        Guo 2017, eq. 3"""
        gaps = np.abs(np.subtract(self.accuracy, self.confidence))
        return float(np.multiply(self.count, gaps).sum() / max(1, sum(self.count)))


def reliability_curve(probabilities: npt.ArrayLike, correct: npt.ArrayLike) -> Reliability:
    """Bin predictions by probability."""
    p, hits = np.asarray(probabilities, np.float64), np.asarray(correct, np.float64)
    bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    filled = count > 0
    confidence, accuracy = (np.bincount(bins, values, minlength=BINS)[filled] / count[filled] for values in (p, hits))
    return Reliability(confidence.tolist(), accuracy.tolist(), count[filled].tolist())


def correction_helps(
    raw_losses: npt.ArrayLike, corrected_losses: npt.ArrayLike, raw_error: float, corrected_error: float
) -> bool:
    """Whether a correction of probabilities improves held-out texts: the calibration error is lower, and the log loss
    of the texts is lower by more than two standard errors of the difference."""
    gains = np.subtract(raw_losses, corrected_losses)
    if len(gains) < 2 or corrected_error >= raw_error:
        return False
    return bool(gains.mean() > 2 * gains.std(ddof=1) / np.sqrt(len(gains)))


def fit_useful_confidence(
    words: Sequence[Sequence[tuple[str, float]]], references: Sequence[str], unit: Unit
) -> Confidence:
    """Fit a correction of word probabilities; the identity where it does not help.

    Whether it helps is decided by cross-fitting: the words of each half of the texts are corrected by a fit on the
    other half.
    """
    probabilities, correct = (np.array(values) for values in word_correctness(words, references, unit))
    if not len(probabilities):
        return Confidence(unit=unit)
    text = np.repeat(np.arange(len(words)), [len(row) for row in words])
    held_out = np.empty(len(probabilities))
    for half in (0, 1):
        inside = text % 2 == half
        fitted = fit_confidence(probabilities[~inside].tolist(), correct[~inside].tolist(), unit=unit)
        held_out[inside] = [fitted(probability) for probability in probabilities[inside].tolist()]

    def losses(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        nats = -np.log(np.clip(np.where(correct, p, 1 - p), EPSILON, 1))
        totals: npt.NDArray[Any] = np.bincount(text, nats, minlength=len(words))
        return totals

    errors = (reliability_curve(table, correct).error for table in (probabilities, held_out))
    if not correction_helps(losses(probabilities), losses(held_out), *errors):
        return Confidence(unit=unit)
    return fit_confidence(probabilities.tolist(), correct.tolist(), unit=unit, texts=len(words))


def matching_words(hypothesis: Sequence[str], reference: Sequence[str]) -> list[bool]:
    """For each word of the hypothesis, whether it belongs to a common subsequence with the reference.

    A good word that the reference does not use counts as wrong, so the share of correct words is a lower bound.
    """
    correct = [False] * len(hypothesis)
    for start, _, size in SequenceMatcher(None, hypothesis, reference, autojunk=False).get_matching_blocks():
        correct[start : start + size] = [True] * size
    return correct


def word_correctness(
    hypotheses: Sequence[Sequence[tuple[str, float]]], references: Sequence[str], unit: Unit
) -> tuple[list[float], list[bool]]:
    """Return the probability of every hypothesis word, and whether it is correct."""
    probabilities: list[float] = []
    correct: list[bool] = []
    for words, reference in zip(hypotheses, references, strict=True):
        probabilities += [probability for _, probability in words]
        correct += matching_words([word for word, _ in words], split_words(reference, unit))
    return probabilities, correct


@torch.inference_mode()
def token_reliability(model: TranslationModel, batches: PairBatches) -> Reliability:
    """Reliability of the most probable next token under teacher forcing."""
    probabilities: list[float] = []
    correct: list[bool] = []
    for indices in batches.plan(0):
        batch = to_device(batches.batch(0, indices), model.device)
        states = model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
        real = batch.labels != PAD
        rows = torch.split(states[real], LOGIT_ROWS), torch.split(batch.labels[real], LOGIT_ROWS)
        for part, labels in zip(*rows, strict=True):
            best, token = model.apply_head("next_token", part[None])[0].float().softmax(-1).max(-1)
            probabilities += best.tolist()
            correct += (token == labels).tolist()
    return reliability_curve(probabilities, correct)


LOGIT_ROWS = 1024
"""Positions whose logits are in memory at a time."""


def draw_reliability(curves: Mapping[str, Mapping[str, Any]], file: Path, unit: str = "word") -> Path:
    """Plot curves (as JSON) of accuracy against confidence; a calibrated model lies on the diagonal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], ":", color="0.7", linewidth=1)
    for name, fields in curves.items():
        curve = Reliability(**fields)
        label = f"{name}, ECE {curve.error:.3f}"
        axes.plot(curve.confidence, curve.accuracy, "o-", label=label, markersize=4, linewidth=1.5)
    axes.set_xlabel(f"predicted {unit} probability")
    axes.set_ylabel(f"{unit} accuracy")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
    return file
