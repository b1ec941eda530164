"""Attention between short texts, a kernel each way: the whole table of a head fits where it is computed.

PyTorch's kernels go through long texts piece by piece; sentences are one piece. It equals `attention`, which says what
it means; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def is_short(*parts: Float[Tensor, "batch tokens heads d_k"]) -> bool:
    """Whether `short_attention` is made for these."""
    one_width = len({part.shape[3] for part in parts}) == 1 and parts[0].shape[3] in WIDTHS
    return one_width and parts[0].dtype in KINDS and max(part.shape[1] for part in parts) <= LONGEST


def short_attention(
    parts: Sequence[Float[Tensor, "batch tokens heads d_k"]], mask: Mask, scale: float | None = None
) -> Float[Tensor, "batch queries heads d_k"]:
    """softmax(Q Kᵀ · scale + B) V under a settled mask; a query that may read nothing reads zeros        A1, A6

    Queries, keys and values are three parts, or lie side by side as they were projected: then their gradients do, too,
    and nothing is copied to bring them together.
    """
    table = mask.allowed if mask.bias is None else mask.bias
    found: Tensor = _short(list(parts), table, mask.causal, parts[0].shape[3] ** -0.5 if scale is None else scale)
    return found


def _three(parts: Sequence[Tensor]) -> list[Tensor]:
    """Queries, keys and values where they lie."""
    return [piece for part in parts for piece in torch.split(part, _heads(parts), 2)]


def _heads(parts: Sequence[Tensor]) -> int:
    return sum(part.shape[2] for part in parts) // 3


def _likewise(parts: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts]


def _found(parts: list[Tensor], *rest: object) -> Tensor:
    batch, queries, _, width = parts[0].shape
    return torch.empty(batch, queries, _heads(parts), width, dtype=parts[0].dtype, device=parts[0].device)


_GIVEN = "Tensor[] parts, Tensor? table, bool causal, float scale"


# A compiler takes both as they are.
@torch.library.custom_op("heedful::short_attention", mutates_args=(), schema=f"({_GIVEN}) -> Tensor")
def _short(parts: list[Tensor], table: Tensor | None, causal: bool, scale: float) -> Tensor:
    query, key, value = _three(parts)
    out = _found(parts)
    _forward[query.shape[0], query.shape[2]](
        query, key, value, query if table is None else table, out,
        *_places(query, key, value, table), *out.stride()[:3], query.shape[1], key.shape[1], scale,
        causal=causal, **_sizes(query, key, table),
    )  # fmt: skip
    return out


@torch.library.custom_op(
    "heedful::short_attention_back", mutates_args=(), schema=f"(Tensor slope, {_GIVEN}) -> Tensor[]"
)
def _short_back(slope: Tensor, parts: list[Tensor], table: Tensor | None, causal: bool, scale: float) -> list[Tensor]:
    query, key, value = _three(parts)
    slopes = _likewise(parts)
    to_query, to_key, to_value = _three(slopes)
    slope = slope if slope.stride(-1) == 1 else slope.contiguous()
    _backward[query.shape[0], query.shape[2]](
        query, key, value, query if table is None else table, slope, to_query, to_key, to_value,
        *_places(query, key, value, table), *slope.stride()[:3], *to_query.stride()[:3], *to_key.stride()[:3],
        query.shape[1], key.shape[1], scale, causal=causal, **_sizes(query, key, table),
    )  # fmt: skip
    return slopes


_short.register_fake(_found)


@_short_back.register_fake
def _(slope: Tensor, parts: list[Tensor], *rest: object) -> list[Tensor]:
    return _likewise(parts)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    parts, table, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(table, *parts)


def _learn(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
    table, *parts = ctx.saved_tensors
    return _short_back(slope, parts, table, ctx.causal, ctx.scale), None, None, None


_short.register_autograd(_learn, setup_context=_keep)


def _places(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None) -> tuple[int, ...]:
    """How far apart things lie: batch, token, head of each; batch, head, query, key of the table."""
    apart = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    if table is None:
        return *apart, 0, 0, 0, 0
    batch, queries, heads, _ = query.shape
    return *apart, *table.expand(batch, heads, queries, key.shape[1]).stride()


def _sizes(query: Tensor, key: Tensor, table: Tensor | None) -> dict[str, int]:
    """Few of them, since each is a kernel to be compiled."""
    half = max(query.shape[1], key.shape[1]) <= LONGEST // 2
    given = OPEN if table is None else ALLOWED if table.dtype == torch.bool else BIAS
    return {
        "given": given,
        "size": LONGEST // 2 if half else LONGEST,
        "width": query.shape[3],
        "num_warps": 2 if half else 4,
    }


LENGTHS = ("queries", "keys", "t_row", "t_head", "t_query")
"""What changes from batch to batch: a kernel is not compiled anew for those that 16 divides."""


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


@triton.jit(do_not_specialize=LENGTHS)
def _forward(
    query, key, value, table, out,
    q_row, q_token, q_head, k_row, k_token, k_head, v_row, v_token, v_head, t_row, t_head, t_query, t_key,
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


@triton.jit(do_not_specialize=LENGTHS)
def _backward(
    query, key, value, table, slope, to_query, to_key, to_value,
    q_row, q_token, q_head, k_row, k_token, k_head, v_row, v_token, v_head, t_row, t_head, t_query, t_key,
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
