"""Cross-entropy over real tokens, summed: the loss of every token predictor (T2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.kernels import dispatch
from heedful.models.heads import OutputProjection
from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD

LOGITS_PER_SLICE = {"cpu": 1 << 21}
"""Logits computed at a time: on a CPU so few that they stay in its cache. On a GPU: see `logits_per_slice`."""


def token_loss(
    projection: OutputProjection, labels: Int[Tensor, "batch tokens"], *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """−Σ log P(label) over positions with a label        Vaswani 2017, 5.4 (label smoothing) · T2

    A sum: the optimizer step divides by the number of real tokens over all ranks and accumulation steps, so that a
    mean of means never gives short batches more weight. Without any label it is 0, not NaN.
    """
    states, weight, bias = projection
    if torch.is_autocast_enabled(states.device.type):
        dtype = torch.get_autocast_dtype(states.device.type)
        states, weight = states.to(dtype), weight.to(dtype)
    inputs = (states.flatten(0, 1), weight, bias, labels.flatten(), label_smoothing)
    # Decided here: inside the autograd function, weights always seem to require gradients.
    loss: Tensor = (
        LinearCrossEntropy.apply(*inputs)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled()
        else sliced_cross_entropy(*inputs, False)[0]
    )
    return loss


def count_labels(labels: Int[Tensor, "batch tokens"]) -> int:
    """Number of labels that are not padding; by NumPy, because waking torch's threads takes longer than counting."""
    return int(np.count_nonzero(labels.cpu().numpy() != PAD))


class LinearCrossEntropy(torch.autograd.Function):
    """Output layer and cross-entropy in one, with the gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        gradient = any(ctx.needs_input_grad)
        loss: Tensor
        loss, *gradients = sliced_cross_entropy(states, weight, bias, labels, smoothing, gradient)
        if gradient:
            ctx.save_for_backward(*gradients)
            ctx.dtype, ctx.has_bias = weight.dtype, bias is not None
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        grad_states, grad_weight, grad_bias = ctx.saved_tensors
        return (
            grad_states * scale,
            (grad_weight * scale).to(ctx.dtype),
            grad_bias * scale if ctx.has_bias else None,
            None,
            None,
        )


# A custom op, because torch.compile would recompute parts of all slices wherever one is read.
@torch.library.custom_op(
    "heedful::sliced_cross_entropy",
    mutates_args=(),
    schema="(Tensor states, Tensor weight, Tensor? bias, Tensor labels, float smoothing, bool gradient)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def sliced_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and, with `gradient`, its gradients by states, weight and bias, a slice of the rows at a time.

    The logits of a whole batch never exist. ∂/∂z = softmax(z) − y is known as soon as a slice's logits z are, so the
    gradients are computed in the same pass and nothing is computed twice.
    """
    vocabulary = len(weight)
    if dispatch.has_cross_entropy(states, vocabulary):
        _, weight, bias = OutputProjection(states, weight, bias).padded()
    loss, grad_states, grad_weight, grad_bias = _allocate_results(states, weight, bias, gradient)
    offset = None if bias is None else bias.to(states.dtype)
    rows = slice_size(len(states), max(1, logits_per_slice(states.device) // len(weight)))
    for first in range(0, len(states), rows):
        part, label = states[first : first + rows], labels[first : first + rows, None]
        row_loss, grad = cross_entropy_and_gradient(
            F.linear(part, weight, offset), label, smoothing, vocabulary, gradient=gradient
        )
        loss += row_loss.sum()
        if gradient:
            grad = grad.to(states.dtype)
            torch.mm(grad, weight, out=grad_states[first : first + rows])
            accumulate_matmul(grad_weight, grad.T, part)
            if bias is not None:
                grad_bias += grad.sum(0, dtype=grad_bias.dtype)
        del grad  # the largest tensor of a step: freed before the next slice's logits are allocated
    grad_weight, grad_bias = (tensor[:vocabulary] if tensor.ndim else tensor for tensor in (grad_weight, grad_bias))
    return loss, grad_states, grad_weight, grad_bias


def accumulate_matmul(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left right, in the total's precision where tensor cores support it."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


@sliced_cross_entropy.register_fake
def _(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, gradient: bool) -> Any:
    return _allocate_results(states, weight, bias, gradient)


def _allocate_results(states: Tensor, weight: Tensor, bias: Tensor | None, gradient: bool) -> tuple[Tensor, ...]:
    """Tensors for the loss and the gradients; sums in float32 at least."""
    exact = torch.promote_types(states.dtype, torch.float32)
    loss = torch.zeros((), device=states.device, dtype=exact)
    return (
        loss,
        torch.empty_like(states if gradient else loss),
        torch.zeros_like(weight if gradient else loss, dtype=exact),
        torch.zeros_like(bias if gradient and bias is not None else loss),
    )


def cross_entropy_and_gradient(
    logits: Float[Tensor, "rows columns"],
    label: Int[Tensor, "rows 1"],
    smoothing: float,
    vocabulary: int,
    *,
    gradient: bool,
) -> tuple[Float[Tensor, "rows 1"], Float[Tensor, "rows columns"]]:
    """−Σ_w y_w log softmax(z)_w and its gradient softmax(z) − y by the logits; y is the smoothed one-hot label.

    Both are 0 where the label is padding. The logits may be overwritten.
    """
    if dispatch.has_cross_entropy(logits, vocabulary):
        return dispatch.cross_entropy_inplace(logits, label, smoothing, vocabulary, gradient=gradient)
    real = label != PAD
    scores = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    loss = -(1 - smoothing) * scores.gather(1, label)
    if smoothing:
        loss = loss - smoothing * scores.mean(-1, keepdim=True)
    if gradient:
        scores = scores.exp_()  # in place: the largest tensor of a step
        if smoothing:
            scores -= smoothing / scores.shape[1]
        scores.scatter_add_(1, label, scores.new_full(label.shape, smoothing - 1))
        if real.is_cuda or not real.all():  # on a GPU, `all` would wait for the device
            scores *= real
    return loss * real, scores


def logits_per_slice(device: torch.device) -> int:
    """Logits computed at a time: on a GPU, in bfloat16, an eightieth of its memory."""
    if device.type in LOGITS_PER_SLICE:
        return LOGITS_PER_SLICE[device.type]
    return torch.cuda.get_device_properties(device).total_memory // 160 if device.type == "cuda" else 1 << 24


def slice_size(rows: int, most: int) -> int:
    """Rows a slice: equal slices, so that no small one is left over; multiples of 128 where they are large."""
    even = -(-rows // max(1, -(-rows // most)))
    return max(1, even) if most < 128 else min(most // 128 * 128, max(1, -(-even // 128)) * 128)


def r_drop_loss(
    logits: Float[Tensor, "twice tokens vocabulary"],
    labels: Int[Tensor, "batch tokens"],
    *,
    label_smoothing: float,
    weight: float,
) -> Float[Tensor, ""]:
    """R-Drop: the mean loss of two passes under different dropout + `weight` · ½ (KL(p‖q) + KL(q‖p))        Wu 2021"""
    scores = torch.log_softmax(logits.float(), -1)
    p, q = scores.chunk(2)
    pointwise = (p.exp() - q.exp()) * (p - q)
    divergence = 0.5 * (pointwise.sum(-1) * (labels != PAD)).sum()
    twice = labels.repeat(2, 1).flatten()
    loss = F.cross_entropy(
        scores.flatten(0, 1), twice, ignore_index=PAD, reduction="sum", label_smoothing=label_smoothing
    )
    return loss / 2 + weight * divergence
