"""Loss of extractive question answering: the start and end of the answer in a passage (T5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.qa_dataset import SpanBatch
from heedful.models.encoder import Encoder
from heedful.shapes import Bool, Float, Int

IMPOSSIBLE = -1e4
"""The logit of a position where no answer can start or end."""


@dataclass(frozen=True)
class AnswerSpanLoss:
    """−log P(start) − log P(end), each a softmax over the passage's tokens and START        Devlin 2019, 4.2–4.3 · T5

    START stands for "no answer in this window". The paper's softmax also includes the question, where no answer can be;
    this one excludes it.
    """

    def token_count(self, batch: SpanBatch) -> int:
        """Labels: a start and an end for each window."""
        return int((batch.labels != batch.ignore_index).sum())

    def loss(self, model: Encoder, batch: SpanBatch) -> Float[Tensor, ""]:
        logits = torch.cat(span_logits(model, batch.tokens, batch.lengths, batch.passage_starts))
        return F.cross_entropy(logits, batch.labels.T.flatten(), ignore_index=batch.ignore_index, reduction="sum")


def span_logits(
    model: Encoder,
    tokens: Int[Tensor, "batch tokens"],
    lengths: Int[Tensor, " batch"],
    passage_starts: Int[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch tokens"], Float[Tensor, "batch tokens"]]:
    """Start and end logits of every token of a batch of windows."""
    return span_head_logits(model, span_states(model, tokens, lengths, passage_starts), lengths, passage_starts)


def span_states(
    model: Encoder,
    tokens: Int[Tensor, "batch tokens"],
    lengths: Int[Tensor, " batch"],
    passage_starts: Int[Tensor, " batch"],
) -> Float[Tensor, "batch tokens width"]:
    """The states of a batch of windows, in which the passage is the second segment."""
    in_passage = _in_passage(tokens.shape[1], lengths, passage_starts)
    return model.states(tokens, lengths, segments=in_passage.long() if model.config.segments > 1 else None)


def span_head_logits(
    model: Encoder,
    states: Float[Tensor, "batch tokens width"],
    lengths: Int[Tensor, " batch"],
    passage_starts: Int[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch tokens"], Float[Tensor, "batch tokens"]]:
    """Start and end logits of every token from the states of a batch of windows."""
    position = torch.arange(states.shape[1], device=states.device)
    in_passage = _in_passage(states.shape[1], lengths, passage_starts)
    possible = (in_passage & (position < lengths[:, None] - 1)) | (position == 0)
    heads = model.apply_head("answer_span", states)
    start, end = (logits.float().masked_fill(~possible, IMPOSSIBLE) for logits in heads)
    return start, end


def _in_passage(
    tokens: int, lengths: Int[Tensor, " batch"], passage_starts: Int[Tensor, " batch"]
) -> Bool[Tensor, "batch tokens"]:
    """Mask of the tokens that belong to the passage, its SEPARATOR included."""
    position = torch.arange(tokens, device=lengths.device)
    return (position >= passage_starts[:, None]) & (position < lengths[:, None])
