"""The loss every token predictor shares: cross-entropy over real tokens, summed (T2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.shapes import Float, Int
from heedful.text.special import PAD


def token_loss(
    read_out: Callable[[Tensor], Tensor],
    states: Float[Tensor, "batch tokens width"],
    labels: Int[Tensor, "batch tokens"],
    *,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """−Σ log P(label) over positions that have one        Vaswani 2017, 5.4 (label smoothing) · T2

    A sum: whoever steps the optimizer divides by the number of real tokens over everything that took part, so
    that a mean of means never gives short batches more weight. No label at all gives 0, not NaN.
    """
    logits = read_out(states.flatten(0, 1)).float()
    return F.cross_entropy(logits, labels.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=label_smoothing)


def agreement_loss(
    read_out: Callable[[Tensor], Tensor],
    states: Float[Tensor, "twice tokens width"],
    labels: Int[Tensor, "batch tokens"],
) -> Float[Tensor, ""]:
    """½ (KL(p‖q) + KL(q‖p)) between two passes under different dropout, summed over real tokens        Wu 2021"""
    p, q = torch.log_softmax(read_out(states).float(), -1).chunk(2)
    both = (p.exp() - q.exp()) * (p - q)
    return 0.5 * (both.sum(-1) * (labels != PAD)).sum()
