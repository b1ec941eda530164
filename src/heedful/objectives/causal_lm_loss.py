"""Next-token loss of a language model (F2, T4)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from heedful.data.text_dataset import TextBatch
from heedful.models.decoder import Decoder
from heedful.models.recurrent import RecurrentDecoder
from heedful.objectives.cross_entropy import count_labels, token_loss
from heedful.shapes import Float


@dataclass(frozen=True)
class CausalLMLoss:
    """−Σ_i log P(x_{i+1} | x_1 … x_i): every token is the label of the one before it (T4)."""

    label_smoothing: float = 0.0

    def token_count(self, batch: TextBatch) -> int:
        return count_labels(batch.labels)

    def loss(self, model: Decoder | RecurrentDecoder, batch: TextBatch) -> Float[Tensor, ""]:
        states = model.states(batch.tokens, document_ids=batch.document_ids)
        smoothing = self.label_smoothing if model.training else 0.0
        return token_loss(model.output_projection("next_token", states), batch.labels, label_smoothing=smoothing)
