"""A linear layer with the norm before it and the activation and residual after it, for a few rows.

    y = act(norm(x) Wᵀ + b) + residual

Torch equivalent: the norm, `nn.Linear`, activation and addition of `layers.block.Block`. With one token a row, a decode
step is bound by reading the weights, and each further kernel launch costs as much as reading some megabytes of them.
GPU-only. Measured as a part of `fused_decode_step`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, nn

from heedful.shapes import Float

ACTIVATION_CODES = {"": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def decode_linear(
    x: Float[Tensor, "rows d"],
    linear: nn.Linear,
    *,
    norm: nn.Module | None = None,
    activation: str = "",
    gated: bool = False,
    residual: Float[Tensor, "rows n"] | None = None,
    residual_norm: nn.Module | None = None,
) -> Float[Tensor, "rows n"]:
    """act(norm(x) Wᵀ + b) + residual_norm(residual); gated, act(first half of the outputs) ⊙ second half."""
    rows, width = x.shape
    outputs = linear.weight.shape[0] // (2 if gated else 1)
    out = x.new_empty(rows, outputs)
    before, after = _norm_arguments(norm, x), _norm_arguments(residual_norm, x)
    block = 4 if width <= 1024 and outputs >= 2048 else 2
    _linear[(triton.cdiv(outputs, block),)](
        x, linear.weight, linear.bias if linear.bias is not None else x, *before[:2],
        residual if residual is not None else x, *after[:2], out,
        outputs, width, x.stride(0), before[2], after[2], rows=rows,
        has_bias=linear.bias is not None, norm=before[3], residual_norm=after[3], has_residual=residual is not None,
        activation=ACTIVATION_CODES[activation], gated=gated, block=block, num_warps=4,
        k_size=triton.next_power_of_2(width), n_size=triton.next_power_of_2(outputs),
    )  # fmt: skip
    return out


def _norm_arguments(norm: nn.Module | None, x: Tensor) -> tuple[Tensor, Tensor, float | None, int]:
    """Gain, bias, epsilon and kind: 0 none, 1 LayerNorm with bias, 2 LayerNorm without, 3 RMSNorm."""
    if isinstance(norm, nn.LayerNorm):
        return (norm.weight, norm.bias, norm.eps, 1) if norm.bias is not None else (norm.weight, x, norm.eps, 2)
    if isinstance(norm, nn.RMSNorm):
        return norm.weight, x, norm.eps, 3
    return x, x, 0.0, 0


# No type annotations in kernels: Triton's compiler would read them as code.
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
def _moments(values, valid, size, norm: tl.constexpr):
    """Mean and variance of one row; for an RMSNorm, 0 and the mean square."""
    mean = tl.sum(values, 0) * 0.0
    if norm < 3:
        mean = tl.sum(values, 0) / size
    deviation = tl.where(valid, values - mean, 0.0)
    return mean, tl.sum(deviation * deviation, 0) / size


@triton.jit
def _linear(
    x, weight, bias, gain, shift, residual, residual_gain, residual_shift, out,
    outputs, width, stride, epsilon, residual_epsilon, rows: tl.constexpr,
    has_bias: tl.constexpr, norm: tl.constexpr, residual_norm: tl.constexpr, has_residual: tl.constexpr,
    activation: tl.constexpr, gated: tl.constexpr, k_size: tl.constexpr, n_size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program computes `block` outputs of every row: it reads that many rows of the weights, and all of x."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    d = tl.arange(0, k_size)
    valid_out, valid_in = at < outputs, d < width
    tile = at[:, None] * width + d[None, :]
    valid = valid_out[:, None] & valid_in[None, :]
    w = tl.load(weight + tile, mask=valid, other=0.0)  # first: the longest load
    if gated:
        w_ungated = tl.load(weight + outputs * width + tile, mask=valid, other=0.0)
    for row in tl.static_range(rows):
        v = tl.load(x + row * stride + d, mask=valid_in, other=0.0).to(tl.float32)
        if norm > 0:
            mean, variance = _moments(v, valid_in, width, norm)
            v = (v - mean) / tl.sqrt(variance + epsilon) * tl.load(gain + d, mask=valid_in, other=0.0).to(tl.float32)
            if norm == 1:
                v += tl.load(shift + d, mask=valid_in, other=0.0).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * v[None, :], 1)
        if has_bias:
            y += tl.load(bias + at, mask=valid_out, other=0.0).to(tl.float32)
        y = _activated(y, activation)
        if gated:
            ungated = tl.sum(w_ungated.to(tl.float32) * v[None, :], 1)
            if has_bias:
                ungated += tl.load(bias + outputs + at, mask=valid_out, other=0.0).to(tl.float32)
            y *= ungated
        if has_residual:
            skip = tl.load(residual + row * outputs + at, mask=valid_out, other=0.0).to(tl.float32)
            if residual_norm > 0:
                n = tl.arange(0, n_size)
                residual_row = tl.load(residual + row * outputs + n, mask=n < outputs, other=0.0).to(tl.float32)
                mean, variance = _moments(residual_row, n < outputs, outputs, residual_norm)
                scale = tl.load(residual_gain + at, mask=valid_out, other=0.0).to(tl.float32)
                skip = (skip - mean) / tl.sqrt(variance + residual_epsilon) * scale
                if residual_norm == 1:
                    skip += tl.load(residual_shift + at, mask=valid_out, other=0.0).to(tl.float32)
            y += skip
        tl.store(out + row * outputs + at, y.to(out.dtype.element_ty), mask=valid_out)
