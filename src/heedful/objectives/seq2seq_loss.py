"""Text to text: the loss of a translator under teacher forcing (F1, T1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.data.pair_dataset import PairBatch
from heedful.objectives.cross_entropy import count_labels, r_drop_loss, token_loss
from heedful.shapes import Float


@dataclass(frozen=True)
class Seq2SeqLoss:
    """The whole shifted target goes in at once; every position is judged in parallel (T1).

    With `r_drop` each pair is read twice under different dropout, and disagreement costs (Wu 2021).
    """

    label_smoothing: float = 0.0
    r_drop: float = 0.0

    def token_count(self, batch: PairBatch) -> int:
        """How many labels the loss is summed over."""
        return count_labels(batch.labels)

    def loss(self, model: Any, batch: PairBatch) -> Float[Tensor, ""]:
        smooth = self.label_smoothing if model.training else 0.0
        if not (self.r_drop and model.training):
            states = model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
            return token_loss(model.output_projection("next_token", states), batch.labels, label_smoothing=smooth)
        twice = model.teacher_forced_states(
            batch.source.repeat(2, 1), batch.target.repeat(2, 1), batch.source_lengths.repeat(2)
        )
        logits = model.apply_head("next_token", twice)
        return r_drop_loss(logits, batch.labels, label_smoothing=smooth, weight=self.r_drop)
