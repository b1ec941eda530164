"""Attention between short texts, a kernel each way: the whole table of a head fits where it is computed.

PyTorch's kernels go through long texts piece by piece; sentences are one piece. It equals `attention`, which says what
it means; a test compares them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.layers.masks import Mask
from heedful.shapes import Float

LONGEST = 64
WIDTHS = (16, 32, 64, 128)
KINDS = (torch.bfloat16, torch.float16)
"""Those that matrix units take as they are."""
OPEN, ALLOWED, BIAS = 0, 1, 2
"""How a mask is given: not at all, as what may be read, or as numbers to add."""


def is_short(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `short_attention` is made for these."""
    longest = max(query.shape[2], key.shape[2])
    one_width = query.shape[3] == value.shape[3] and query.shape[3] in WIDTHS
    return longest <= LONGEST and one_width and query.shape[1] == key.shape[1] and query.dtype in KINDS


def short_attention(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch heads keys d_k"],
    value: Float[Tensor, "batch heads keys d_k"],
    mask: Mask,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries d_k"]:
    """softmax(Q Kᵀ · scale + B) V under a settled mask; a query that may read nothing reads zeros        A1, A6"""
    table = mask.allowed if mask.bias is None else mask.bias
    scale = query.shape[3] ** -0.5 if scale is None else scale
    found: Tensor = _short(query, key, value, table, mask.causal, scale)
    return found.transpose(1, 2)


_GIVEN = "Tensor query, Tensor key, Tensor value, Tensor? table, bool causal, float scale"


# A compiler takes both as they are. Results lie as batch, tokens, heads, width: heads are joined without a copy.
@torch.library.custom_op("heedful::short_attention", mutates_args=(), schema=f"({_GIVEN}) -> Tensor")
def _short(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None, causal: bool, scale: float) -> Tensor:
    out = _like(query)
    _forward[_grid(query)](
        query, key, value, query if table is None else table, out,
        *_places(query, key, value, table), *out.stride()[:3], query.shape[2], key.shape[2], scale,
        causal=causal, **_sizes(query, key, table),
    )  # fmt: skip
    return out


@torch.library.custom_op(
    "heedful::short_attention_back", mutates_args=(), schema=f"(Tensor slope, {_GIVEN}) -> (Tensor, Tensor, Tensor)"
)
def _short_back(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, table: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    to_query, to_key, to_value = _like(query), _like(key), _like(value)
    slope = slope if slope.stride(-1) == 1 else slope.contiguous()
    _backward[_grid(query)](
        query, key, value, query if table is None else table, slope, to_query, to_key, to_value,
        *_places(query, key, value, table), *slope.stride()[:3], *to_query.stride()[:3], *to_key.stride()[:3],
        query.shape[2], key.shape[2], scale, causal=causal, **_sizes(query, key, table),
    )  # fmt: skip
    return to_query, to_key, to_value


@_short.register_fake
def _(query: Tensor, *rest: object) -> Tensor:
    return _like(query)


@_short_back.register_fake
def _(slope: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return _like(query), _like(key), _like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _learn(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
    query, key, value, table = ctx.saved_tensors
    slopes = _short_back(slope, query, key, value, table, ctx.causal, ctx.scale)
    return *(slope.transpose(1, 2) for slope in slopes), None, None, None


_short.register_autograd(_learn, setup_context=_keep)


def _like(x: Tensor) -> Tensor:
    batch, heads, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width)


def _grid(query: Tensor) -> tuple[int, int]:
    return query.shape[0], query.shape[1]


def _places(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None) -> tuple[int, ...]:
    """How far apart things lie: batch, head, token of each; batch, head, query, key of the table."""
    apart = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    if table is None:
        return *apart, 0, 0, 0, 0
    return *apart, *table.expand(*query.shape[:3], key.shape[2]).stride()


def _sizes(query: Tensor, key: Tensor, table: Tensor | None) -> dict[str, int]:
    """Few of them, since each is a kernel to be compiled."""
    half = max(query.shape[2], key.shape[2]) <= LONGEST // 2
    given = OPEN if table is None else ALLOWED if table.dtype == torch.bool else BIAS
    return {
        "given": given,
        "size": LONGEST // 2 if half else LONGEST,
        "width": query.shape[3],
        "num_warps": 2 if half else 4,
    }


# Kernels are without annotations: their compiler would read them as code.
@triton.jit
def _weights(
    q, k, table, t_query, t_key, queries, keys, scale,
    causal: tl.constexpr, given: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """softmax(q kᵀ · scale + B) of one head."""
    i, j = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    real = (i < queries) & (j < keys)
    if causal:
        real = real & (j <= i + keys - queries)
    if given == 1:
        real = real & (tl.load(table + i * t_query + j * t_key, mask=real, other=0) != 0)
    if given == 2:
        scores += tl.load(table + i * t_query + j * t_key, mask=real, other=0.0).to(tl.float32)
    scores = tl.where(real, scores, float("-inf"))
    most = tl.max(scores, 1)
    most = tl.where(most == float("-inf"), 0.0, most)  # a row that may read nothing
    weights = tl.exp(scores - most[:, None])
    total = tl.sum(weights, 1)
    return weights / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _tile(x, tokens, apart, size: tl.constexpr, width: tl.constexpr):
    t, d = tl.arange(0, size)[:, None], tl.arange(0, width)[None, :]
    return tl.load(x + t * apart + d, mask=t < tokens, other=0.0)


@triton.jit
def _put(x, tile, tokens, apart, size: tl.constexpr, width: tl.constexpr):
    t, d = tl.arange(0, size)[:, None], tl.arange(0, width)[None, :]
    tl.store(x + t * apart + d, tile.to(x.dtype.element_ty), mask=t < tokens)


@triton.jit
def _forward(
    query, key, value, table, out,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token, t_row, t_head, t_query, t_key,
    o_row, o_token, o_head, queries, keys, scale,
    causal: tl.constexpr, given: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q = _tile(query + row * q_row + head * q_head, queries, q_token, size, width)
    k = _tile(key + row * k_row + head * k_head, keys, k_token, size, width)
    v = _tile(value + row * v_row + head * v_head, keys, v_token, size, width)
    mask = table + row * t_row + head * t_head
    weights = _weights(q, k, mask, t_query, t_key, queries, keys, scale, causal, given, size)
    found = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    _put(out + row * o_row + head * o_head, found, queries, o_token, size, width)


@triton.jit
def _backward(
    query, key, value, table, slope, to_query, to_key, to_value,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token, t_row, t_head, t_query, t_key,
    s_row, s_token, s_head, tq_row, tq_token, tq_head, tk_row, tk_token, tk_head, queries, keys, scale,
    causal: tl.constexpr, given: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q = _tile(query + row * q_row + head * q_head, queries, q_token, size, width)
    k = _tile(key + row * k_row + head * k_head, keys, k_token, size, width)
    v = _tile(value + row * v_row + head * v_head, keys, v_token, size, width)
    by_found = _tile(slope + row * s_row + head * s_head, queries, s_token, size, width)
    mask = table + row * t_row + head * t_head
    weights = _weights(q, k, mask, t_query, t_key, queries, keys, scale, causal, given, size)
    by_value = tl.dot(tl.trans(weights.to(v.dtype)), by_found, input_precision="ieee")
    by_weights = tl.dot(by_found, tl.trans(v), input_precision="ieee")
    by_scores = weights * (by_weights - tl.sum(by_weights * weights, 1)[:, None]) * scale
    by_scores = by_scores.to(q.dtype)
    _put(to_value + row * tk_row + head * tk_head, by_value, keys, tk_token, size, width)
    by_query = tl.dot(by_scores, k, input_precision="ieee")
    _put(to_query + row * tq_row + head * tq_head, by_query, queries, tq_token, size, width)
    by_key = tl.dot(tl.trans(by_scores), q, input_precision="ieee")
    _put(to_key + row * tk_row + head * tk_head, by_key, keys, tk_token, size, width)
