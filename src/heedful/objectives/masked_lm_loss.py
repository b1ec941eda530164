"""Masked-token and next-sentence loss of an encoder (T4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.masked_lm_batches import MaskedBatch
from heedful.models.encoder import Encoder
from heedful.objectives.cross_entropy import count_labels, token_loss
from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD


@dataclass(frozen=True)
class MaskedLMLoss:
    """−Σ log P(masked token | the other tokens)        Devlin 2019, 3.1 · T4

    The output layer, the most expensive part of a small model, sees masked positions only: about one in seven.
    """

    label_smoothing: float = 0.0

    def token_count(self, batch: MaskedBatch) -> int:
        return count_labels(batch.labels)

    def loss(self, model: Encoder, batch: MaskedBatch) -> Float[Tensor, ""]:
        states = encode_batch(model, batch)
        smoothing = self.label_smoothing if model.training else 0.0
        projection = model.output_projection("masked_token", states_at(states, batch.positions))
        loss = token_loss(projection, batch.labels, label_smoothing=smoothing)
        if batch.next_sentence_labels is None:
            return loss
        # The paper adds a mean over tokens and a mean over rows. A step divides by the number of tokens, so each row's
        # next-sentence loss is weighted by its masked tokens, and rows may be split over devices.
        logits = model.apply_head("next_sentence", states, batch.lengths).float()
        row_loss = F.cross_entropy(logits, batch.next_sentence_labels, reduction="none")
        return loss + (row_loss * (batch.labels != PAD).sum(1)).sum()


def encode_batch(model: Encoder, batch: MaskedBatch) -> Float[Tensor, "batch tokens width"]:
    """The encoder's state at every token."""
    return model.states(batch.tokens, batch.lengths, segments=batch.segments)


def states_at(
    states: Float[Tensor, "batch tokens width"], positions: Int[Tensor, "batch masked"]
) -> Float[Tensor, "batch masked width"]:
    """The states at these positions of each row."""
    rows, tokens, width = states.shape
    first = tokens * torch.arange(rows, device=positions.device)[:, None]
    return states.flatten(0, 1).index_select(0, (positions + first).flatten()).view(rows, -1, width)
