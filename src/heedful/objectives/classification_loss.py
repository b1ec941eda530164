"""Loss of text classification, with one or several labels per text (T5, G4)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from heedful.data.labeled_dataset import ClassBatch, EncodedBatch
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.shapes import Float


def class_logits(model: Encoder | Decoder, batch: EncodedBatch) -> Float[Tensor, "batch classes"]:
    """Logits of each class for a batch of texts."""
    if isinstance(model, Encoder) and model.config.segments > 1:
        states = model.states(batch.tokens, batch.lengths, segments=batch.segments)
    else:
        states = model.states(batch.tokens, batch.lengths)
    logits: Tensor = model.apply_head("sequence_class", states, batch.lengths)
    return logits.float()


@dataclass(frozen=True)
class ClassificationLoss:
    """−Σ w log P(class | text); with several labels, −Σ w log P(label or not | text)        Devlin 2019, 4.1 · T5

    In training, w > 1 for rare classes: see `balanced_class_weights` and `rare_label_weights`.
    """

    multi_label: bool = False
    label_smoothing: float = 0.0

    def token_count(self, batch: ClassBatch) -> int:
        """Number of texts with a label."""
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels[:, 0]
        return int((labels != batch.ignore_index).sum())

    def loss(self, model: Encoder | Decoder, batch: ClassBatch) -> Float[Tensor, ""]:
        logits = class_logits(model, batch)
        if self.multi_label:
            real = batch.labels != batch.ignore_index
            losses = F.binary_cross_entropy_with_logits(logits, (batch.labels * real).float(), reduction="none")
            return (losses * real * batch.weights).sum() if model.training else (losses * real).sum()
        smoothing = self.label_smoothing if model.training else 0.0
        losses = F.cross_entropy(
            logits, batch.labels, ignore_index=batch.ignore_index, reduction="none", label_smoothing=smoothing
        )
        return (losses * batch.weights).sum() if model.training else losses.sum()


def balanced_class_weights(counts: list[int], max_ratio: float = float("inf")) -> list[float]:
    """w_c = N / (K n_c): classes have equal total weight, and the mean weight of an example is 1   King & Zeng 2001

    No class weighs more than `max_ratio` times the lightest.
    """
    sizes = [max(1, count, max(counts) / max_ratio) for count in counts]
    scale = sum(counts) / sum(count / size for count, size in zip(counts, sizes, strict=True))
    return [scale / size for size in sizes]


def rare_label_weights(counts: list[int], max_ratio: float = float("inf")) -> list[float]:
    """w_c = max n / n_c, for several labels per text: a text with a rare label weighs more in that label's loss.

    Texts without a label, and those with the most frequent one, have weight 1; none has more than `max_ratio`.
    """
    return [min(max_ratio, max(counts) / max(1, count)) for count in counts]
