"""Hidden words found again, and whether one text followed another: the losses an encoder learns from (T4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.masked_lm_batches import MaskedBatch
from heedful.objectives.cross_entropy import count_labels, token_loss
from heedful.shapes import Float
from heedful.text.special_tokens import PAD


@dataclass(frozen=True)
class MaskedLMLoss:
    """−Σ log P(hidden token | the rest)        Devlin 2019, 3.1 · T4

    The output layer is the dearest part of a small model, and sees hidden places only: about one in seven.
    """

    label_smoothing: float = 0.0

    def token_count(self, batch: MaskedBatch) -> int:
        return count_labels(batch.labels)

    def loss(self, model: Any, batch: MaskedBatch) -> Float[Tensor, ""]:
        states = encode_batch(model, batch)
        smooth = self.label_smoothing if model.training else 0.0
        found = model.output_projection("masked_token", states_at(states, batch.positions))
        loss = token_loss(found, batch.labels, label_smoothing=smooth)
        if batch.next_sentence_labels is None:
            return loss
        # The paper adds a mean over words and a mean over rows. Whoever steps divides by the words: so a row's answer
        # weighs as much as its words together, and rows may be shared out among devices.
        logits = model.apply_head("next_sentence", states, batch.lengths).float()
        wrong = F.cross_entropy(logits, batch.next_sentence_labels, reduction="none")
        return loss + (wrong * (batch.labels != PAD).sum(1)).sum()


def encode_batch(model: Any, batch: MaskedBatch) -> Float[Tensor, "batch tokens width"]:
    """The state of every token."""
    states: Tensor = model.states(batch.tokens, batch.lengths, segments=batch.segments)
    return states


def states_at(states: Float[Tensor, "batch tokens width"], places: Tensor) -> Float[Tensor, "batch masked width"]:
    """The states at these places of each row."""
    rows, tokens, width = states.shape
    first = tokens * torch.arange(rows, device=places.device)[:, None]
    return states.flatten(0, 1).index_select(0, (places + first).flatten()).view(rows, -1, width)
