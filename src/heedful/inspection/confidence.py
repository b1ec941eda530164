"""How far a word's probability can be trusted, and the correction that makes it so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heedful.config import Config
from heedful.text.word_tokens import Unit

CONFIDENCE_FILE = "confidence.json"
EPSILON = 1e-6
"""Nothing is quite certain: a logit has to be finite."""


class Confidence(Config):
    """From the probability a model gives its word to how often such words are right: what confidence.json holds.

    p′ = σ(a · logit p + b) · min(1, p / p₀)        Platt 1999, but for the end

    Labels smoothed in training leave a model too modest, and choosing the likeliest text makes it look too sure; a
    slope and a shift, fitted on held-out text, undo both and keep the order of words. Of words less likely than all it
    was fitted on, p < p₀, nothing is known: p′ falls with p, or rivals of a model that is always right would look sure.
    """

    slope: float = 1.0
    shift: float = 0.0
    min_probability: float = 0.0
    """p₀"""
    unit: Unit = "words"
    words: int = 0
    """How many it was fitted on."""
    texts: int = 0
    """And in how many texts: the first of the validation text."""

    def __call__(self, probability: float) -> float:
        known = min(1.0, probability / self.min_probability) if self.min_probability else 1.0
        return known * float(sigmoid(self.slope * logit(np.array([probability])) + self.shift)[0])


def fit_confidence(
    probabilities: Sequence[float], correct: Sequence[bool], *, unit: Unit = "words", texts: int = 0
) -> Confidence:
    """The slope and shift under which the judgements `right` are likeliest, by Newton's method.

    As in Platt 1999 the judgements are drawn in a little, (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), so that a model that is
    always right, or never, still has a finite fit. Where probability says nothing of being right, all words are
    given the same.
    """
    x, good = logit(np.asarray(probabilities, np.float64)), np.asarray(correct, np.bool_)
    if not len(x):
        return Confidence(unit=unit, texts=texts)
    y = np.where(good, (good.sum() + 1) / (good.sum() + 2), 1 / ((~good).sum() + 2))
    slope, shift = _newton(np.stack([x, np.ones_like(x)], axis=1), y)
    if slope <= 0:
        slope, shift = 0.0, float(logit(np.array([y.mean()]))[0])
    lowest = max(0.0, float(min(probabilities)))
    return Confidence(slope=slope, shift=shift, min_probability=lowest, unit=unit, words=len(x), texts=texts)


def _newton(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    def surprise(weights: npt.NDArray[np.float64]) -> float:
        z = x @ weights
        return float((np.logaddexp(0, z) - y * z).sum())

    weights = np.array([0.0, logit(y.mean(keepdims=True))[0]])
    for _ in range(50):
        p = sigmoid(x @ weights)
        curve = (x * (p * (1 - p))[:, None]).T @ x + EPSILON * np.eye(2)  # solvable even if all words are equally likely
        change = np.linalg.solve(curve, x.T @ (y - p))
        while surprise(weights + change) > surprise(weights) and np.abs(change).max() > EPSILON:
            change /= 2  # a step too far
        weights = weights + change
        if np.abs(change).max() < EPSILON:
            break
    return float(weights[0]), float(weights[1])


def logit(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    p = np.clip(p, EPSILON, 1 - EPSILON)
    found: npt.NDArray[np.float64] = np.log(p / (1 - p))
    return found


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = (1 + np.tanh(x / 2)) / 2
    return found
