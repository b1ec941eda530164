"""Loss of an encoder-decoder under teacher forcing (F1, T1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from heedful.data.pair_dataset import PairBatch
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.recurrent import RecurrentEncoderDecoder
from heedful.objectives.cross_entropy import count_labels, r_drop_loss, token_loss
from heedful.shapes import Float


@dataclass(frozen=True)
class Seq2SeqLoss:
    """−Σ_i log P(y_i | y_1 … y_{i−1}, source), all target positions in parallel (T1).

    With `r_drop` each pair is read twice under different dropout, and their divergence is added (Wu 2021).
    """

    label_smoothing: float = 0.0
    r_drop: float = 0.0

    def token_count(self, batch: PairBatch) -> int:
        return count_labels(batch.labels)

    def loss(self, model: EncoderDecoder | RecurrentEncoderDecoder, batch: PairBatch) -> Float[Tensor, ""]:
        smoothing = self.label_smoothing if model.training else 0.0
        if not (self.r_drop and model.training):
            states = model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
            return token_loss(model.output_projection("next_token", states), batch.labels, label_smoothing=smoothing)
        twice = model.teacher_forced_states(
            batch.source.repeat(2, 1), batch.target.repeat(2, 1), batch.source_lengths.repeat(2)
        )
        logits = model.apply_head("next_token", twice)
        return r_drop_loss(logits, batch.labels, label_smoothing=smoothing, weight=self.r_drop)
