"""Perplexity and bits per byte of a model on held-out text."""

from __future__ import annotations

from typing import Any

import torch

from heedful.data.batching import Batches, evenly_spaced_batches
from heedful.data.dataset import Split
from heedful.evaluation.text_metrics import prediction_scores
from heedful.models.build import Model
from heedful.objectives.objective import Objective, to_device


@torch.inference_mode()
def evaluate_perplexity(
    model: Model,
    objective: Objective,
    batches: Batches,
    text: Split,
    device: torch.device,
    *,
    limit: int | None = None,
) -> dict[str, Any]:
    """Sum the loss over all labels of a text, or over about `limit` of them, and convert it to the usual metrics."""
    nats, tokens = 0.0, 0
    for indices in evenly_spaced_batches(batches, limit):
        batch = batches.batch(0, indices)
        nats += float(objective.loss(model, to_device(batch, device)))
        tokens += objective.token_count(batch)
    share = tokens / max(1, batches.labels_per_epoch)
    return prediction_scores(nats, tokens, text.size.scaled(share))
