"""Where in a passage the answer stands: the loss of a model that reads for an answer (T5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.qa_dataset import SpanBatch
from heedful.shapes import Bool, Float, Int

NEVER = -1e4
"""The score of a place where no answer can be."""


@dataclass(frozen=True)
class AnswerSpanLoss:
    """−log P(start) − log P(end), each a softmax over the passage's tokens and START        Devlin 2019, 4.2–4.3 · T5

    START stands for "the answer is not here". The paper's softmax runs over the question, too, where no answer can be:
    ours leaves it out.
    """

    def token_count(self, batch: SpanBatch) -> int:
        """Two places to find in each window."""
        return int((batch.labels != batch.ignore_index).sum())

    def loss(self, model: Any, batch: SpanBatch) -> Float[Tensor, ""]:
        places = span_logits(model, batch.tokens, batch.lengths, batch.passage_starts)
        return F.cross_entropy(
            torch.cat(places), batch.labels.T.flatten(), ignore_index=batch.ignore_index, reduction="sum"
        )


def span_logits(
    model: Any,
    tokens: Int[Tensor, "batch tokens"],
    lengths: Int[Tensor, " batch"],
    begins: Int[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch tokens"], Float[Tensor, "batch tokens"]]:
    """How well an answer could start, and end, at every token of some windows."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    in_passage = (place >= begins[:, None]) & (place < lengths[:, None])  # its SEPARATOR included
    segments = in_passage.long() if model.config.segments > 1 else None
    states = model(tokens, lengths, segments=segments)
    possible: Bool[Tensor, "batch tokens"] = (in_passage & (place < lengths[:, None] - 1)) | (place == 0)
    start, end = (scores.float().masked_fill(~possible, NEVER) for scores in model.apply_head("answer_span", states))
    return start, end
