"""Skip-gram loss with negative sampling and word order, for word vectors (E2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from heedful.data.skip_gram_batches import NO_DOCUMENT, SkipGramBatch
from heedful.models.word_vectors import WordVectors
from heedful.shapes import Float, Int


@dataclass(frozen=True)
class SkipGramLoss:
    """−Σ_(w,c) [ log σ(u_c · v_w) + Σ_k E_r log σ(−u_r · v_w) + log σ(±s_c · v_w) ]        E2

    Each word w predicts each word c within its window against k negatives r drawn for every pair (Mikolov 2013, eq. 4),
    and whether c stands before w (+) or after it (−) (Song 2018): word order separates words of one topic, and words
    that could replace each other come closer. A model without `word_order` has no such term.

    The words of a row share their negatives (Ji 2016), each with less weight: the expected sum is the same, and all
    scores become matrix products. The window is not sampled: each neighbor has its expected weight (`window_weights`).
    """

    negatives: int = 5

    def token_count(self, batch: SkipGramBatch) -> int:
        """Words of text read, those dropped by subsampling included, as word2vec counts words per second."""
        return batch.words_read

    def loss(self, model: WordVectors, batch: SkipGramBatch) -> Float[Tensor, ""]:
        near, negatives = window_weights(batch), batch.negatives.shape[1]
        negative_weight = near.sum(1, keepdim=True) * (self.negatives / negatives)
        v = model.table(batch.words)  # rows words width
        u = model.context(torch.cat([batch.context, batch.negatives], dim=1))
        positive, negative = (u @ v.mT).split([batch.context.shape[1], negatives], dim=1)
        likelihood = logsigmoid(positive)
        if model.order is not None:
            likelihood = likelihood + logsigmoid(model.order(batch.context) @ v.mT * before_or_after(batch))
        return -((likelihood * near).sum() + (logsigmoid(-negative) * negative_weight).sum())


def window_weights(batch: SkipGramBatch) -> Float[Tensor, "rows context words"]:
    """(n + 1 − d) / n for a neighbor d ≤ n words away in the same document, else 0; n is the window.

    word2vec samples each word's window from 1 … n; this is the probability that a neighbor is inside it, so the
    expected loss is the same without the sampling noise.
    """
    words, distance = batch.words.shape[1], offsets(batch).abs()
    window = (batch.context.shape[1] - words) // 2
    weight = (1 - (distance - 1) / window).clamp(min=0) * (distance > 0)
    document = batch.document_ids[:, None, window : window + words]
    return weight * ((batch.document_ids[:, :, None] == document) & (document != NO_DOCUMENT))


def before_or_after(batch: SkipGramBatch) -> Float[Tensor, "context words"]:
    """+1 for a context word before the word, −1 for one after it."""
    return -offsets(batch).sign().float()


def offsets(batch: SkipGramBatch) -> Int[Tensor, "context words"]:
    """Position of each context word minus that of each word."""
    words, context = batch.words.shape[1], batch.context.shape[1]
    position = torch.arange(context, device=batch.words.device)
    return position[:, None] - (context - words) // 2 - position[:words]
