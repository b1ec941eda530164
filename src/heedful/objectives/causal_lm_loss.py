"""The next token of running text: the loss of a language model (F2, T4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.data.text_dataset import TextBatch
from heedful.objectives.cross_entropy import count_labels, token_loss
from heedful.shapes import Float


@dataclass(frozen=True)
class CausalLMLoss:
    """Every token is the label of the one before it: text teaches by itself (T4)."""

    label_smoothing: float = 0.0

    def token_count(self, batch: TextBatch) -> int:
        return count_labels(batch.labels)

    def loss(self, model: Any, batch: TextBatch) -> Float[Tensor, ""]:
        states = model.states(batch.tokens, document_ids=batch.document_ids)
        smooth = self.label_smoothing if model.training else 0.0
        return token_loss(model.output_projection("next_token", states), batch.labels, label_smoothing=smooth)
