"""Loss by position in a text, also at positions that were rare in training or beyond the trained length (P4, Q8)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.batching import Batches, evenly_spaced_batches
from heedful.data.pair_dataset import PairBatch
from heedful.data.text_dataset import TextBatch
from heedful.models.build import GenerativeModel
from heedful.models.decoder import Decoder, positions_in_documents
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.recurrent import RecurrentDecoder, RecurrentEncoderDecoder
from heedful.objectives.objective import to_device
from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD

RANGES = 16
"""Maximum number of position ranges that losses are averaged over."""


@torch.inference_mode()
def losses_by_position(
    model: GenerativeModel, batches: Batches, device: torch.device, *, limit: int | None = None
) -> list[dict[str, Any]]:
    """The mean loss of the tokens in each range of positions, with its 95% confidence interval.

    Each is −log P of the token at a position, given those before it; with a source, under teacher forcing. Positions
    are counted from 0 in the text or, where several documents are packed into a row, in the document.
    """
    totals = torch.zeros(3, 0, dtype=torch.float64)
    for indices in evenly_spaced_batches(batches, limit):
        batch = to_device(batches.batch(0, indices), device)
        losses, positions = _token_losses(model, batch)
        real = batch.labels != PAD
        values = losses[real].double().cpu()
        index = positions.expand_as(batch.labels)[real].cpu()
        if len(index) and int(index.max()) >= totals.shape[1]:
            totals = F.pad(totals, (0, int(index.max()) + 1 - totals.shape[1]))
        for row, part in zip(totals, (torch.ones_like(values), values, values.square()), strict=True):
            row.index_add_(0, index, part)
    return _ranges(totals)


def _token_losses(
    model: GenerativeModel, batch: TextBatch | PairBatch
) -> tuple[Float[Tensor, "batch tokens"], Int[Tensor, "#batch tokens"]]:
    """−log P of every label, and the position of each."""
    positions = torch.arange(batch.labels.shape[1], device=batch.labels.device)[None]
    if isinstance(batch, TextBatch):
        assert isinstance(model, Decoder | RecurrentDecoder), "only a language model reads running text"
        states = model.states(batch.tokens, document_ids=batch.document_ids)
        if batch.document_ids is not None:
            positions = positions_in_documents(batch.document_ids)
    else:
        assert isinstance(model, EncoderDecoder | RecurrentEncoderDecoder), "only a translator reads pairs"
        states = model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
    rows = [
        F.cross_entropy(model.apply_head("next_token", state[None])[0].float(), labels, reduction="none")
        for state, labels in zip(states, batch.labels, strict=True)
    ]
    return torch.stack(rows), positions


def _ranges(totals: Float[Tensor, "3 positions"]) -> list[dict[str, Any]]:
    """Convert counts, sums and sums of squares by position to means over position ranges of equal width."""
    width = max(1, -(-totals.shape[1] // RANGES))
    ranges = []
    for first in range(0, totals.shape[1], width):
        count, total, squares = totals[:, first : first + width].sum(1).tolist()
        if not count:
            continue
        mean = total / count
        spread = 1.96 * max(0.0, (squares / count - mean**2) / max(1.0, count - 1)) ** 0.5
        last = min(first + width, totals.shape[1]) - 1
        loss = {"loss": mean, "loss_low": mean - spread, "loss_high": mean + spread}
        ranges.append({"first": first, "last": last, "tokens": round(count), **loss})
    return ranges
