"""A class for a text: the loss of a classifier (T5, G4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from heedful.data.labelled_dataset import ClassBatch, EncodedBatch
from heedful.shapes import Float


def class_logits(model: Any, rows: EncodedBatch) -> Float[Tensor, "batch classes"]:
    """What a classifier makes of framed texts."""
    how = {"segments": rows.segments} if model.config.segments > 1 else {}
    states = model.states(rows.tokens, rows.lengths, **how)
    logits: Tensor = model.apply_head("sequence_class", states, rows.lengths)
    return logits.float()


@dataclass(frozen=True)
class ClassificationLoss:
    """−Σ w log P(class | text); or, of several labels, −Σ w log P(label or not | text)        Devlin 2019, 4.1 · T5

    Where classes are skewed, training counts the texts of rare ones for more (w): see `balanced` and `lifted`.
    """

    multi_label: bool = False
    label_smoothing: float = 0.0

    def token_count(self, batch: ClassBatch) -> int:
        """How many examples the loss is summed over."""
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels[:, 0]
        return int((labels != batch.ignore_index).sum())

    def loss(self, model: Any, batch: ClassBatch) -> Float[Tensor, ""]:
        logits = class_logits(model, batch)
        if self.multi_label:
            real = batch.labels != batch.ignore_index
            wrong = F.binary_cross_entropy_with_logits(logits, (batch.labels * real).float(), reduction="none")
            return (wrong * real * batch.weights).sum() if model.training else (wrong * real).sum()
        smooth = self.label_smoothing if model.training else 0.0
        wrong = F.cross_entropy(
            logits, batch.labels, ignore_index=batch.ignore_index, reduction="none", label_smoothing=smooth
        )
        return (wrong * batch.weights).sum() if model.training else wrong.sum()


def balanced_class_weights(counts: list[int], max_ratio: float = float("inf")) -> list[float]:
    """w_c = N / (K n_c): each class has the same say, and the mean weight of an example is 1        King & Zeng 2001

    No class weighs more than `most` times the lightest.
    """
    parts = [max(1, count, max(counts) / max_ratio) for count in counts]
    scale = sum(counts) / sum(count / part for count, part in zip(counts, parts, strict=True))
    return [scale / part for part in parts]


def rare_label_weights(counts: list[int], max_ratio: float = float("inf")) -> list[float]:
    """w_c = max n / n_c, where each label is a question of its own: a text that has a rare one counts for more there.

    Texts without a label, and those with the commonest, count once; none more than `most` times.
    """
    return [min(max_ratio, max(counts) / max(1, count)) for count in counts]
