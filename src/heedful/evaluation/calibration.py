"""Whether probabilities mean what they say: of the words given 80%, are 80% right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batching import PairBatches
from heedful.objectives.objective import to_device
from heedful.text.special_tokens import PAD
from heedful.text.word_tokens import Unit, split_words

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Words in bins of equal width by the probability they were given."""

    confidence: npt.NDArray[np.float64]
    """The mean probability in each bin that holds any."""
    accuracy: npt.NDArray[np.float64]
    """The share of its words that were right."""
    count: npt.NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error: Σ_b n_b / n · |true_b − said_b|        Guo 2017, eq. 3"""
        return float((self.count * np.abs(self.accuracy - self.confidence)).sum() / max(1, self.count.sum()))

    def to_json(self) -> dict[str, list[float]]:
        return {"said": self.confidence.tolist(), "true": self.accuracy.tolist(), "count": self.count.tolist()}

    @classmethod
    def from_json(cls, parts: dict[str, list[float]]) -> Reliability:
        return cls(np.array(parts["said"]), np.array(parts["true"]), np.array(parts["count"], np.int64))


def reliability_curve(probabilities: Sequence[float], correct: Sequence[bool]) -> Reliability:
    p, good = np.asarray(probabilities, np.float64), np.asarray(correct, np.float64)
    place = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    full = count > 0
    said, true = (np.bincount(place, values, minlength=BINS)[full] / count[full] for values in (p, good))
    return Reliability(said, true, count[full])


def matching_words(written: Sequence[str], reference: Sequence[str]) -> list[bool]:
    """For each word written, whether it is part of what the text and its reference have in common, in one order.

    A good word that the reference does not use counts as wrong: so the share of right words is a lower bound.
    """
    right = [False] * len(written)
    for start, _, size in SequenceMatcher(None, written, reference, autojunk=False).get_matching_blocks():
        right[start : start + size] = [True] * size
    return right


def word_correctness(
    written: Sequence[Sequence[tuple[str, float]]], references: Sequence[str], unit: Unit
) -> tuple[list[float], list[bool]]:
    """The probability of every word of some texts, and whether it is right."""
    said: list[float] = []
    right: list[bool] = []
    for words, reference in zip(written, references, strict=True):
        said += [probability for _, probability in words]
        right += matching_words([word for word, _ in words], split_words(reference, unit))
    return said, right


@torch.inference_mode()
def token_reliability(model: Any, batches: PairBatches) -> Reliability:
    """Under teacher forcing: how often the likeliest next token is the reference's, against its probability."""
    said: list[float] = []
    right: list[bool] = []
    for indices in batches.plan(0):
        batch = to_device(batches.batch(0, indices), model.table.weight.device)
        states = model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
        real = batch.labels != PAD
        for part, labels in zip(states[real].split(LOGIT_ROWS), batch.labels[real].split(LOGIT_ROWS), strict=True):
            best, token = model.apply_head("next_token", part[None])[0].float().softmax(-1).max(-1)
            said += best.tolist()
            right += (token == labels).tolist()
    return reliability_curve(said, right)


LOGIT_ROWS = 1024
"""Positions whose logits are held at one time."""


def draw_reliability(curves: dict[str, Reliability], file: Path, unit: str = "word") -> Path:
    """Said against true; on the diagonal, probabilities mean what they say."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], ":", color="0.7", linewidth=1)
    for name, curve in curves.items():
        axes.plot(curve.confidence, curve.accuracy, "o-", label=f"{name}, off by {curve.error:.3f}", markersize=4, linewidth=1.5)
    many = f"{unit}es" if unit.endswith("s") else f"{unit}s"
    axes.set_xlabel(f"probability given to a {unit}")
    axes.set_ylabel(f"share of such {many} that are right")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
    return file
