"""The loss every token predictor shares: cross-entropy over real tokens, summed (T2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.models.heads import OutputProjection
from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD

LOGITS_PER_SLICE = {"cpu": 1 << 21}
"""Logits held at one time: on a CPU so few that they stay in its cache. On a GPU: see `at_once`."""
WIDE = 1024
"""Words from which a kernel of our own is worth compiling, which takes seconds when it is first met."""


def token_loss(
    scoring: OutputProjection, labels: Int[Tensor, "batch tokens"], *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """−Σ log P(label) over positions that have one        Vaswani 2017, 5.4 (label smoothing) · T2

    A sum: whoever steps the optimizer divides by the number of real tokens over everything that took part, so
    that a mean of means never gives short batches more weight. No label at all gives 0, not NaN.
    """
    states, weight, bias = scoring
    if torch.is_autocast_enabled(states.device.type):
        kind = torch.get_autocast_dtype(states.device.type)
        states, weight = states.to(kind), weight.to(kind)
    given = (states.flatten(0, 1), weight, bias, labels.flatten(), label_smoothing)
    # Asked here: inside, weights always look as if they were to learn.
    loss: Tensor = LinearCrossEntropy.apply(*given) if torch.is_grad_enabled() else sliced_cross_entropy(*given, False)[0]  # type: ignore[no-untyped-call]
    return loss


def count_labels(labels: Int[Tensor, "batch tokens"]) -> int:
    """By one thread: on many cores, waking the others takes longer than counting."""
    return int(np.count_nonzero(labels.cpu().numpy() != PAD))


class LinearCrossEntropy(torch.autograd.Function):
    """The output layer and its loss in one: see `slices`. Gradients are at hand on the way forward, scaled on the
    way back."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        learn = any(ctx.needs_input_grad)
        loss: Tensor
        loss, *gradients = sliced_cross_entropy(states, weight, bias, labels, smoothing, learn)
        if learn:
            ctx.save_for_backward(*gradients)
            ctx.kind, ctx.has_bias = weight.dtype, bias is not None
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        to_states, to_weight, to_bias = ctx.saved_tensors
        return (
            to_states * scale,
            (to_weight * scale).to(ctx.kind),
            to_bias * scale if ctx.has_bias else None,
            None,
            None,
        )


# A compiler takes it as it is: left to itself, it would work out parts of all slices wherever one is read.
@torch.library.custom_op(
    "heedful::slices",
    mutates_args=(),
    schema="(Tensor states, Tensor weight, Tensor? bias, Tensor labels, float smoothing, bool learn)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def sliced_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, learn: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and if it is to `learn` the gradients by states, weight and bias, a slice of the rows at a time.

    Logits of a whole batch never exist. ∂/∂z = softmax(z) − y is at hand as soon as a slice's logits z are, so the
    gradients are made there and then: nothing is computed twice.
    """
    words = len(weight)
    if has_kernel(states, words):
        _, weight, bias = OutputProjection(states, weight, bias).padded()
    loss, to_states, to_weight, to_bias = _results(states, weight, bias, learn)
    offset = None if bias is None else bias.to(states.dtype)
    rows = slice_size(len(states), max(1, logits_per_slice(states.device) // len(weight)))
    for first in range(0, len(states), rows):
        part, label = states[first : first + rows], labels[first : first + rows, None]
        surprise, slope = cross_entropy_and_gradient(F.linear(part, weight, offset), label, smoothing, words, learn=learn)
        loss += surprise.sum()
        if learn:
            slope = slope.to(states.dtype)
            torch.mm(slope, weight, out=to_states[first : first + rows])
            accumulate_matmul(to_weight, slope.T, part)
            if bias is not None:
                to_bias += slope.sum(0, dtype=to_bias.dtype)
        del slope  # or there would be two at a time, of the widest numbers there are
    to_weight, to_bias = (kept[:words] if kept.ndim else kept for kept in (to_weight, to_bias))
    return loss, to_states, to_weight, to_bias


def accumulate_matmul(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left right, in the total's precision where matrix units can do that."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


@sliced_cross_entropy.register_fake
def _(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, learn: bool) -> Any:
    return _results(states, weight, bias, learn)


def _results(states: Tensor, weight: Tensor, bias: Tensor | None, learn: bool) -> tuple[Tensor, ...]:
    """Places for the loss and the gradients; sums in float32 at least."""
    exact = torch.promote_types(states.dtype, torch.float32)
    loss = torch.zeros((), device=states.device, dtype=exact)
    return (
        loss,
        torch.empty_like(states if learn else loss),
        torch.zeros_like(weight if learn else loss, dtype=exact),
        torch.zeros_like(bias if learn and bias is not None else loss),
    )


def cross_entropy_and_gradient(
    logits: Float[Tensor, "rows columns"], label: Int[Tensor, "rows 1"], smoothing: float, words: int, *, learn: bool
) -> tuple[Float[Tensor, "rows 1"], Float[Tensor, "rows columns"]]:
    """−Σ_w y_w log softmax(z)_w, and its slope softmax(z) − y; y is the label, or for its share any word.

    Both are 0 where there is no label. The logits may be gone afterwards.
    """
    if has_kernel(logits, words):
        from heedful.kernels.cross_entropy_kernel import cross_entropy_inplace  # there is none without a GPU

        return cross_entropy_inplace(logits, label, smoothing, words, learn=learn)
    real = label != PAD
    scores = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    surprise = -(1 - smoothing) * scores.gather(1, label)
    if smoothing:
        surprise = surprise - smoothing * scores.mean(-1, keepdim=True)
    if learn:
        scores = scores.exp_()  # in its place: these are the most numbers of all
        if smoothing:
            scores -= smoothing / scores.shape[1]
        scores.scatter_add_(1, label, scores.new_full(label.shape, smoothing - 1))
        if real.is_cuda or not real.all():  # a GPU is not asked: that would be waiting for it
            scores *= real
    return surprise * real, scores


def logits_per_slice(device: torch.device) -> int:
    """How many logits are held at one time: on a GPU an eightieth of what it has room for."""
    if device.type in LOGITS_PER_SLICE:
        return LOGITS_PER_SLICE[device.type]
    return torch.cuda.get_device_properties(device).total_memory // 160 if device.type == "cuda" else 1 << 24


def has_kernel(x: Tensor, words: int) -> bool:
    return x.is_cuda and x.dtype != torch.float64 and words >= WIDE


def slice_size(rows: int, most: int) -> int:
    """Slices of one size, so that no small one is left over; of many rows, what matrix units like."""
    even = -(-rows // max(1, -(-rows // most)))
    return max(1, even) if most < 128 else min(most // 128 * 128, max(1, -(-even // 128)) * 128)


def r_drop_loss(
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
