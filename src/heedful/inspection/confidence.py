"""Calibrate word probabilities by Platt scaling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heedful.config import Config
from heedful.text.word_tokens import Unit

EPSILON = 1e-6
"""Probabilities are clipped to [ε, 1 − ε], so that logits are finite."""


class Confidence(Config):
    """Map a word's probability to how often such words are correct; stored as confidence.json.

    p′ = σ(a · logit p + b) · min(1, p / p₀)        Platt 1999, except for the last factor

    Label smoothing makes a model underconfident, search for the most probable text overconfident; a slope and a shift
    fitted on held-out text correct both and keep the order of words. Below the lowest fitted probability, p < p₀, p′
    falls in proportion to p: otherwise alternatives of a model that is always right would look certain.
    """

    slope: float = 1.0
    shift: float = 0.0
    min_probability: float = 0.0
    """p₀"""
    unit: Unit = "words"
    words: int = 0
    """Number of words it was fitted on."""
    texts: int = 0
    """Number of evenly spaced validation texts it was fitted on."""

    @property
    def is_identity(self) -> bool:
        """Whether probabilities are left unchanged."""
        return (self.slope, self.shift, self.min_probability) == (1.0, 0.0, 0.0)

    def __call__(self, probability: float) -> float:
        factor = min(1.0, probability / self.min_probability) if self.min_probability else 1.0
        return factor * float(sigmoid(self.slope * logit(np.array([probability])) + self.shift)[0])


def fit_confidence(
    probabilities: Sequence[float], correct: Sequence[bool], *, unit: Unit = "words", texts: int = 0
) -> Confidence:
    """Fit slope and shift by maximum likelihood of the labels `correct`, with Newton's method.

    As in Platt 1999 the targets are (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), so that a model that is always or never
    correct still has a finite fit. If probability does not predict correctness, all words get the mean.
    """
    x, hits = logit(np.asarray(probabilities, np.float64)), np.asarray(correct, np.bool_)
    if not len(x):
        return Confidence(unit=unit, texts=texts)
    y = np.where(hits, (hits.sum() + 1) / (hits.sum() + 2), 1 / ((~hits).sum() + 2))
    slope, shift = _newton(np.stack([x, np.ones_like(x)], axis=1), y)
    if slope <= 0:
        slope, shift = 0.0, float(logit(np.array([y.mean()]))[0])
    lowest = max(0.0, float(min(probabilities)))
    return Confidence(slope=slope, shift=shift, min_probability=lowest, unit=unit, words=len(x), texts=texts)


def _newton(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    def loss(weights: npt.NDArray[np.float64]) -> float:
        z = x @ weights
        return float((np.logaddexp(0, z) - y * z).sum())

    weights = np.array([0.0, logit(y.mean(keepdims=True))[0]])
    for _ in range(50):
        p = sigmoid(x @ weights)
        # EPSILON: invertible even if all probabilities are equal.
        hessian = (x * (p * (1 - p))[:, None]).T @ x + EPSILON * np.eye(2)
        change = np.linalg.solve(hessian, x.T @ (y - p))
        while loss(weights + change) > loss(weights) and np.abs(change).max() > EPSILON:
            change /= 2  # backtracking line search
        weights = weights + change
        if np.abs(change).max() < EPSILON:
            break
    return float(weights[0]), float(weights[1])


def logit(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log p / (1 − p)"""
    p = np.clip(p, EPSILON, 1 - EPSILON)
    values: npt.NDArray[np.float64] = np.log(p / (1 - p))
    return values


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 / (1 + e^−x)"""
    values: npt.NDArray[np.float64] = (1 + np.tanh(x / 2)) / 2
    return values
