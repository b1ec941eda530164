"""act(norm(x) Wᵀ + b) + residual for a few rows, in one kernel: what decoding on a GPU does between attentions.

With one token a row, a step does little but read the weights; each kernel it takes besides costs as much as reading
some megabytes of them. It equals the modules it stands for; a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor, nn

from heedful.shapes import Float

ACTIVATIONS = {"": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


class NormWeights(NamedTuple):
    """A norm's weights, as a kernel takes them."""

    gain: Tensor
    bias: Tensor | None
    epsilon: float
    centred: bool

    @classmethod
    def from_module(cls, norm: nn.Module | None) -> NormWeights | None:
        if isinstance(norm, nn.LayerNorm):
            return cls(norm.weight, norm.bias, norm.eps, centred=True)
        if isinstance(norm, nn.RMSNorm):
            assert norm.eps is not None
            return cls(norm.weight, None, norm.eps, centred=False)
        return None


def decode_linear(
    x: Float[Tensor, "rows d"],
    linear: nn.Linear,
    *,
    norm: NormWeights | None = None,
    activation: str = "",
    gated: bool = False,
    residual: Float[Tensor, "rows n"] | None = None,
    residual_norm: NormWeights | None = None,
) -> Float[Tensor, "rows n"]:
    """The linear layer of normalised rows, what the activation makes of it, added to a (normalised) residual.

    Gated, the first half of the outputs decides how much of the second passes.
    """
    rows, width = x.shape
    wide = linear.weight.shape[0] // (2 if gated else 1)
    out = x.new_empty(rows, wide)
    before, behind = _given(norm, x), _given(residual_norm, x)
    tall = 4 if width <= 1024 and wide >= 2048 else 2
    _linear[(triton.cdiv(wide, tall),)](
        x, linear.weight, linear.bias if linear.bias is not None else x, *before[:2],
        residual if residual is not None else x, *behind[:2], out,
        wide, width, x.stride(0), before[2], behind[2], rows=rows,
        has_bias=linear.bias is not None, norm=before[3], residual_norm=behind[3], has_residual=residual is not None,
        activation=ACTIVATIONS[activation], gated=gated, tall=tall, num_warps=4,
        k_size=triton.next_power_of_2(width), n_size=triton.next_power_of_2(wide),
    )  # fmt: skip
    return out


def _given(norm: NormWeights | None, x: Tensor) -> tuple[Tensor, Tensor, float, int]:
    """Gain, bias, epsilon and kind: 0 none, 1 centred with a bias, 2 centred without, 3 not centred."""
    if norm is None:
        return x, x, 0.0, 0
    kind = 3 if not norm.centred else 2 if norm.bias is None else 1
    return norm.gain, norm.bias if norm.bias is not None else x, norm.epsilon, kind


# Kernels are without annotations: their compiler would read them as code.
@triton.jit
def _activated(y, activation: tl.constexpr):
    if activation == 1:
        y = tl.maximum(y, 0.0)
    if activation == 2:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if activation == 3:  # 0.5 (1 + tanh(u)) = σ(2u)
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if activation == 4:
        y = y * tl.sigmoid(y)
    return y


@triton.jit
def _mean(values, inside, size, norm: tl.constexpr):
    """Of one row: its mean, and its variance about it; of a norm that is not centred, about 0."""
    mean = tl.sum(values, 0) * 0.0
    if norm < 3:
        mean = tl.sum(values, 0) / size
    apart = tl.where(inside, values - mean, 0.0)
    return mean, tl.sum(apart * apart, 0) / size


@triton.jit
def _linear(
    x, weight, bias, gain, shift, residual, residual_gain, residual_shift, out,
    wide, width, stride, epsilon, residual_epsilon, rows: tl.constexpr,
    has_bias: tl.constexpr, norm: tl.constexpr, residual_norm: tl.constexpr, has_residual: tl.constexpr,
    activation: tl.constexpr, gated: tl.constexpr, k_size: tl.constexpr, n_size: tl.constexpr, tall: tl.constexpr,
):  # fmt: skip
    """A program reads `tall` rows of the weights at once, and all of x."""
    at = tl.program_id(0) * tall + tl.arange(0, tall)
    d = tl.arange(0, k_size)
    here, inside = at < wide, d < width
    tile = at[:, None] * width + d[None, :]
    both = here[:, None] & inside[None, :]
    w = tl.load(weight + tile, mask=both, other=0.0)  # first of all: it takes longest
    if gated:
        w_inner = tl.load(weight + wide * width + tile, mask=both, other=0.0)
    for row in tl.static_range(rows):
        v = tl.load(x + row * stride + d, mask=inside, other=0.0).to(tl.float32)
        if norm > 0:
            mean, variance = _mean(v, inside, width, norm)
            v = (v - mean) / tl.sqrt(variance + epsilon) * tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
            if norm == 1:
                v += tl.load(shift + d, mask=inside, other=0.0).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * v[None, :], 1)
        if has_bias:
            y += tl.load(bias + at, mask=here, other=0.0).to(tl.float32)
        y = _activated(y, activation)
        if gated:
            inner = tl.sum(w_inner.to(tl.float32) * v[None, :], 1)
            if has_bias:
                inner += tl.load(bias + wide + at, mask=here, other=0.0).to(tl.float32)
            y *= inner
        if has_residual:
            skip = tl.load(residual + row * wide + at, mask=here, other=0.0).to(tl.float32)
            if residual_norm > 0:
                n = tl.arange(0, n_size)
                all_of_it = tl.load(residual + row * wide + n, mask=n < wide, other=0.0).to(tl.float32)
                mean, variance = _mean(all_of_it, n < wide, wide, residual_norm)
                scale = tl.load(residual_gain + at, mask=here, other=0.0).to(tl.float32)
                skip = (skip - mean) / tl.sqrt(variance + residual_epsilon) * scale
                if residual_norm == 1:
                    skip += tl.load(residual_shift + at, mask=here, other=0.0).to(tl.float32)
            y += skip
        tl.store(out + row * wide + at, y.to(out.dtype.element_ty), mask=here)
