"""Attention over short sequences, one kernel each for the forward and backward pass.

    O = softmax(Q Kᵀ · scale + B) V

Torch equivalent: `layers.attention.attention`. PyTorch's kernels tile long sequences; up to 64 tokens the whole score
matrix of a head fits in one tile, and query, key and value projections are read in place. GPU-only. Measured
gain on an H200: 1.02 and 1.11 times as fast a training step of Transformer-base in two runs
(benchmarks/results/kernels-gpu.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.kernels.dispatch import SHORT_ATTENTION_TOKENS
from heedful.layers.masks import Mask
from heedful.shapes import Float

UNMASKED, BOOLEAN, BIAS = 0, 1, 2
"""Kinds of mask: none, True where attending is allowed, numbers added to the scores."""


def short_attention(
    parts: Sequence[Float[Tensor, "batch _ _ d_k"]], mask: Mask, scale: float | None = None
) -> Float[Tensor, "batch queries heads d_k"]:
    """softmax(Q Kᵀ · scale + B) V under a resolved mask; a query that may attend to nothing reads zeros        A1, A6

    `parts` are queries, keys and values: three tensors, or fewer that hold them side by side along the head axis, as
    one linear layer projects them. Their gradients then lie side by side too, and nothing is copied.
    """
    table = mask.allowed if mask.bias is None else mask.bias
    return _attention(list(parts), table, mask.causal, parts[0].shape[3] ** -0.5 if scale is None else scale)


def _query_key_value(parts: Sequence[Tensor]) -> list[Tensor]:
    """Views of queries, keys and values."""
    return [piece for part in parts for piece in torch.split(part, _head_count(parts), 2)]


def _head_count(parts: Sequence[Tensor]) -> int:
    return sum(part.shape[2] for part in parts) // 3


def _empty_like(parts: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts]


def _empty_output(parts: list[Tensor], *inputs: object) -> Tensor:
    batch, queries, _, width = parts[0].shape
    return torch.empty(batch, queries, _head_count(parts), width, dtype=parts[0].dtype, device=parts[0].device)


_INPUTS = "Tensor[] parts, Tensor? table, bool causal, float scale"


# Custom ops, which torch.compile does not trace into.
@torch.library.custom_op("heedful::short_attention", mutates_args=(), schema=f"({_INPUTS}) -> Tensor")
def _attention(parts: list[Tensor], table: Tensor | None, causal: bool, scale: float) -> Tensor:
    query, key, value = _query_key_value(parts)
    out = _empty_output(parts)
    _forward[query.shape[0], query.shape[2]](
        query, key, value, query if table is None else table, out,
        *_strides(query, key, value, table), *out.stride()[:3], query.shape[1], key.shape[1], scale,
        causal=causal, **_launch_options(query, key, table),
    )  # fmt: skip
    return out


@torch.library.custom_op(
    "heedful::short_attention_backward", mutates_args=(), schema=f"(Tensor grad, {_INPUTS}) -> Tensor[]"
)
def _attention_backward(
    grad: Tensor, parts: list[Tensor], table: Tensor | None, causal: bool, scale: float
) -> list[Tensor]:
    query, key, value = _query_key_value(parts)
    grads = _empty_like(parts)
    grad_query, grad_key, grad_value = _query_key_value(grads)
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    _backward[query.shape[0], query.shape[2]](
        query, key, value, query if table is None else table, grad, grad_query, grad_key, grad_value,
        *_strides(query, key, value, table), *grad.stride()[:3], *grad_query.stride()[:3], *grad_key.stride()[:3],
        query.shape[1], key.shape[1], scale, causal=causal, **_launch_options(query, key, table),
    )  # fmt: skip
    return grads


_attention.register_fake(_empty_output)


@_attention_backward.register_fake
def _(grad: Tensor, parts: list[Tensor], *inputs: object) -> list[Tensor]:
    return _empty_like(parts)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    parts, table, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(table, *parts)


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    table, *parts = ctx.saved_tensors
    return _attention_backward(grad, parts, table, ctx.causal, ctx.scale), None, None, None


_attention.register_autograd(_autograd_backward, setup_context=_setup_context)


def _strides(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None) -> tuple[int, ...]:
    """Strides: batch, token and head of queries, keys and values; batch, head, query and key of the mask's table."""
    strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    if table is None:
        return *strides, 0, 0, 0, 0
    batch, queries, heads, _ = query.shape
    return *strides, *table.expand(batch, heads, queries, key.shape[1]).stride()


def _launch_options(query: Tensor, key: Tensor, table: Tensor | None) -> dict[str, int]:
    """Compile-time constants: few distinct values, since each combination is compiled."""
    half = max(query.shape[1], key.shape[1]) <= SHORT_ATTENTION_TOKENS // 2
    return {
        "mask_kind": UNMASKED if table is None else BOOLEAN if table.dtype == torch.bool else BIAS,
        "size": SHORT_ATTENTION_TOKENS // 2 if half else SHORT_ATTENTION_TOKENS,
        "width": query.shape[3],
        "num_warps": 2 if half else 4,
    }


LENGTHS = ("queries", "keys", "t_row", "t_head", "t_query")
"""Arguments that vary from batch to batch: not specialized, or Triton would recompile for multiples of 16."""


# No type annotations in kernels: Triton's compiler would read them as code.
@triton.jit
def _weights(
    q, k, table, t_query, t_key, queries, keys, scale,
    causal: tl.constexpr, mask_kind: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """softmax(q kᵀ · scale + B) of one head."""
    i, j = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    allowed = (i < queries) & (j < keys)
    if causal:
        allowed = allowed & (j <= i + keys - queries)
    if mask_kind == 1:
        allowed = allowed & (tl.load(table + i * t_query + j * t_key, mask=allowed, other=0) != 0)
    if mask_kind == 2:
        scores += tl.load(table + i * t_query + j * t_key, mask=allowed, other=0.0).to(tl.float32)
    scores = tl.where(allowed, scores, float("-inf"))
    peak = tl.max(scores, 1)
    peak = tl.where(peak == float("-inf"), 0.0, peak)  # a query that may attend to nothing
    weights = tl.exp(scores - peak[:, None])
    total = tl.sum(weights, 1)
    return weights / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _load_tile(x, tokens, stride, size: tl.constexpr, width: tl.constexpr):
    t, d = tl.arange(0, size)[:, None], tl.arange(0, width)[None, :]
    return tl.load(x + t * stride + d, mask=t < tokens, other=0.0)


@triton.jit
def _store_tile(x, tile, tokens, stride, size: tl.constexpr, width: tl.constexpr):
    t, d = tl.arange(0, size)[:, None], tl.arange(0, width)[None, :]
    tl.store(x + t * stride + d, tile.to(x.dtype.element_ty), mask=t < tokens)


@triton.jit(do_not_specialize=LENGTHS)
def _forward(
    query, key, value, table, out,
    q_row, q_token, q_head, k_row, k_token, k_head, v_row, v_token, v_head, t_row, t_head, t_query, t_key,
    o_row, o_token, o_head, queries, keys, scale,
    causal: tl.constexpr, mask_kind: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q = _load_tile(query + row * q_row + head * q_head, queries, q_token, size, width)
    k = _load_tile(key + row * k_row + head * k_head, keys, k_token, size, width)
    v = _load_tile(value + row * v_row + head * v_head, keys, v_token, size, width)
    mask = table + row * t_row + head * t_head
    weights = _weights(q, k, mask, t_query, t_key, queries, keys, scale, causal, mask_kind, size)
    heads = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    _store_tile(out + row * o_row + head * o_head, heads, queries, o_token, size, width)


@triton.jit(do_not_specialize=LENGTHS)
def _backward(
    query, key, value, table, grad, grad_query, grad_key, grad_value,
    q_row, q_token, q_head, k_row, k_token, k_head, v_row, v_token, v_head, t_row, t_head, t_query, t_key,
    g_row, g_token, g_head, gq_row, gq_token, gq_head, gk_row, gk_token, gk_head, queries, keys, scale,
    causal: tl.constexpr, mask_kind: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q = _load_tile(query + row * q_row + head * q_head, queries, q_token, size, width)
    k = _load_tile(key + row * k_row + head * k_head, keys, k_token, size, width)
    v = _load_tile(value + row * v_row + head * v_head, keys, v_token, size, width)
    grad_out = _load_tile(grad + row * g_row + head * g_head, queries, g_token, size, width)
    mask = table + row * t_row + head * t_head
    weights = _weights(q, k, mask, t_query, t_key, queries, keys, scale, causal, mask_kind, size)
    d_value = tl.dot(tl.trans(weights.to(v.dtype)), grad_out, input_precision="ieee")
    d_weights = tl.dot(grad_out, tl.trans(v), input_precision="ieee")
    d_scores = weights * (d_weights - tl.sum(d_weights * weights, 1)[:, None]) * scale
    d_scores = d_scores.to(q.dtype)
    _store_tile(grad_value + row * gk_row + head * gk_head, d_value, keys, gk_token, size, width)
    d_query = tl.dot(d_scores, k, input_precision="ieee")
    _store_tile(grad_query + row * gq_row + head * gq_head, d_query, queries, gq_token, size, width)
    d_key = tl.dot(tl.trans(d_scores), q, input_precision="ieee")
    _store_tile(grad_key + row * gk_row + head * gk_head, d_key, keys, gk_token, size, width)
