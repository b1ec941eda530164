"""The loss every token predictor shares: cross-entropy over real tokens, summed (T2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.models.heads import Scoring
from heedful.shapes import Float, Int
from heedful.text.special import PAD

AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 29}
"""Logits held at one time: on a CPU so few that they stay in its cache."""


def token_loss(
    scoring: Scoring, labels: Int[Tensor, "batch tokens"], *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """−Σ log P(label) over positions that have one        Vaswani 2017, 5.4 (label smoothing) · T2

    A sum: whoever steps the optimizer divides by the number of real tokens over everything that took part, so
    that a mean of means never gives short batches more weight. No label at all gives 0, not NaN.
    """
    states, weight, bias = scoring
    if torch.is_autocast_enabled(states.device.type):
        kind = torch.get_autocast_dtype(states.device.type)
        states, weight = states.to(kind), weight.to(kind)
    loss: Tensor = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        states.flatten(0, 1), weight, bias, labels.flatten(), label_smoothing
    )
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """The output layer and its loss in one, a slice of the rows at a time: logits of a whole batch never exist.

    ∂/∂z = softmax(z) − y is at hand as soon as a slice's logits z are, so the gradients are made on the way
    forward and only scaled on the way back: nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        learn = any(ctx.needs_input_grad)
        loss = torch.zeros((), device=states.device, dtype=torch.promote_types(states.dtype, torch.float32))
        to_weight = torch.zeros_like(weight, dtype=loss.dtype) if learn else loss
        to_bias = torch.zeros_like(bias) if learn and bias is not None else None
        to_states: list[Tensor] = []
        rows = max(1, AT_ONCE.get(states.device.type, 1 << 24) // len(weight))
        for part, label in zip(torch.split(states, rows), torch.split(labels[:, None], rows), strict=True):
            real = label != PAD
            scores = torch.log_softmax(F.linear(part, weight, bias), dim=-1, dtype=loss.dtype)
            surprise = -(1 - smoothing) * scores.gather(1, label)
            if smoothing:
                surprise = surprise - smoothing * scores.mean(-1, keepdim=True)
            loss = loss + (surprise * real).sum()
            if learn:
                slope = scores.exp_()  # in its place: these are the most numbers of all
                if smoothing:
                    slope -= smoothing / len(weight)
                slope = slope.to(states.dtype)
                slope.scatter_add_(1, label, slope.new_full(label.shape, smoothing - 1))
                to_states.append((slope @ weight) * real)
                part = part * real
                if to_weight.dtype == part.dtype:
                    to_weight.addmm_(slope.T, part)
                else:
                    to_weight += slope.T @ part
                if to_bias is not None:
                    to_bias += (slope.T @ real.to(slope.dtype))[:, 0]
        if learn:
            ctx.save_for_backward(torch.cat(to_states), to_weight, to_bias)
            ctx.kind = weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        to_states, to_weight, to_bias = ctx.saved_tensors
        bias = None if to_bias is None else to_bias * scale
        return to_states * scale, (to_weight * scale).to(ctx.kind), bias, None, None


def agreeing_loss(
    logits: Float[Tensor, "twice tokens vocabulary"],
    labels: Int[Tensor, "batch tokens"],
    *,
    label_smoothing: float,
    agreement: float,
) -> Float[Tensor, ""]:
    """The mean loss of two passes under different dropout, and `agreement` × ½ (KL(p‖q) + KL(q‖p))        Wu 2021"""
    scores = torch.log_softmax(logits.float(), -1)
    p, q = scores.chunk(2)
    both = (p.exp() - q.exp()) * (p - q)
    apart = 0.5 * (both.sum(-1) * (labels != PAD)).sum()
    twice = labels.repeat(2, 1).flatten()
    wrong = F.cross_entropy(
        scores.flatten(0, 1), twice, ignore_index=PAD, reduction="sum", label_smoothing=label_smoothing
    )
    return wrong / 2 + agreement * apart
