"""Tell a word's neighbours from words drawn at random, and which side they stand on: the loss of word vectors (E2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from heedful.data.skip_gram_batches import NO_DOCUMENT, SkipGramBatch
from heedful.shapes import Float, Int


@dataclass(frozen=True)
class SkipGramLoss:
    """−Σ_(w,c) [ log σ(u_c · v_w) + Σ_k E_r log σ(−u_r · v_w) + log σ(±s_c · v_w) ]        E2

    Each word w of the text predicts each word c within its window, against k words r drawn for every such pair
    (Mikolov 2013, eq. 4), and whether c stands before w, +, or behind it, − (Song 2018): what may stand where tells
    words apart that are spoken of together, and words that could take each other's place come closer.

    Here the words of a row share what is drawn (Ji 2016), each drawn word counting for less: the sum is the same on
    average, and all scores become matrix products instead of dot products by the million. Nor is it drawn how far a
    word looks: each neighbour counts for as much as it would on average (see `nearness`).
    """

    negatives: int = 5

    def token_count(self, batch: SkipGramBatch) -> int:
        """Words of text read: those left out by sub-sampling count, as everywhere where words per second are told."""
        return batch.words_read

    def loss(self, model: Any, batch: SkipGramBatch) -> Float[Tensor, ""]:
        near, drawn = window_weights(batch), batch.negatives.shape[1]
        weight = near.sum(1, keepdim=True) * (self.negatives / drawn)
        v = model.table(batch.words)  # rows words width
        u = model.company(torch.cat([batch.context, batch.negatives], dim=1))
        told, refused = (u @ v.mT).split([batch.context.shape[1], drawn], dim=1)
        before = model.side(batch.context) @ v.mT * sides(batch)
        return -(((logsigmoid(told) + logsigmoid(before)) * near).sum() + (logsigmoid(-refused) * weight).sum())


def window_weights(batch: SkipGramBatch) -> Float[Tensor, "rows around words"]:
    """(n + 1 − d) / n for a neighbour d ≤ n words away in the same document, else 0; n is the window.

    word2vec draws for each word how far it looks, 1 … n: so often is a neighbour then within reach. To count it for
    that much teaches the same without the noise.
    """
    words, distance = batch.words.shape[1], offsets(batch).abs()
    window = (batch.context.shape[1] - words) // 2
    weight = (1 - (distance - 1) / window).clamp(min=0) * (distance > 0)
    document = batch.document_ids[:, None, window : window + words]
    return weight * ((batch.document_ids[:, :, None] == document) & (document != NO_DOCUMENT))


def sides(batch: SkipGramBatch) -> Float[Tensor, "around words"]:
    """+1 for what stands before a word, −1 for what stands behind it."""
    return -offsets(batch).sign().float()


def offsets(batch: SkipGramBatch) -> Int[Tensor, "around words"]:
    """How far behind a word each of those around it stands."""
    words, around = batch.words.shape[1], batch.context.shape[1]
    place = torch.arange(around, device=batch.words.device)
    return place[:, None] - (around - words) // 2 - place[:words]
