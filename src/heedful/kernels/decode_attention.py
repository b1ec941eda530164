"""Attention of one new token to all before it, in one kernel: what decoding on a GPU spends its time on.

It equals `Fixed.append` and `attention`, which say what it means; a test compares them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.layers.kv_cache import StaticCacheIndex, LayerKVCache
from heedful.shapes import Float

LOG2_E = 1.4426950408889634
FEW, MANY = 48, 512
"""Rows × heads up to which large bites hide the wait, and from which a GPU is full anyway."""


def decode_attention(
    query: Float[Tensor, "batch heads 1 d_k"],
    key: Float[Tensor, "batch groups 1 d_k"],
    value: Float[Tensor, "batch groups 1 d_v"],
    layer: LayerKVCache,
    fixed: StaticCacheIndex,
    scale: float,
) -> Float[Tensor, "batch heads 1 d_v"]:
    """softmax(q Kᵀ · scale) V over the row's past and the new token, whose key and value are put down        A1, G1"""
    held, where = (layer.keys, layer.values), (fixed.cache_rows, fixed.position)
    found: Tensor = _attend_next(query, key, value, *held, *where, fixed.reordered, scale)
    return found


# A compiler takes it as it is, and knows what it changes.
@torch.library.custom_op("heedful::attend_next", mutates_args=("keys", "values"))
def _attend_next(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    origin: Tensor,
    place: Tensor,
    moved: bool,
    scale: float,
) -> Tensor:
    batch, heads, _, width = query.shape
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    block, warps, ahead = _bites(batch * heads, moved)
    _attend[(batch, heads)](
        query, key, value, keys, values, origin, place, out,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2), values.stride(0), values.stride(1), values.stride(2),
        origin.stride(0), out.stride(0), out.stride(1),
        scale * LOG2_E, heads // key.shape[1], width=width, block=block, ahead=ahead, moved=moved, num_warps=warps,
    )  # fmt: skip
    return out


def _bites(programs: int, moved: bool) -> tuple[int, int, int]:
    """Keys at a time, warps for them, and how many bites are fetched ahead: as measured on an H200."""
    if programs < FEW:
        return 256, 8, 1
    if programs < MANY:
        return 64, 4, 3
    return (32, 1, 1) if moved else (64, 2, 2)


@_attend_next.register_fake
def _(query: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


# One row and head. The softmax is kept up to date while the keys go by (Milakov & Gimelshein 2018).
# Without annotations: the compiler would read them as code.
@triton.jit
def _attend(
    query, new_key, new_value, keys, values, origin, place, out,
    q_row, q_head, nk_row, nk_group, nv_row, nv_group, k_row, k_group, k_place, v_row, v_group, v_place,
    o_row, out_row, out_head, scale, shared,
    width: tl.constexpr, block: tl.constexpr, ahead: tl.constexpr, moved: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    group = head // shared
    end = tl.load(place)
    d = tl.arange(0, width)
    q = tl.load(query + row * q_row + head * q_head + d).to(tl.float32) * scale  # log2(e) is in the scale: 2^x below
    k = tl.load(new_key + row * nk_row + group * nk_group + d)
    v = tl.load(new_value + row * nv_row + group * nv_group + d)
    tl.store(keys + row * k_row + group * k_group + end * k_place + d, k)
    tl.store(values + row * v_row + group * v_group + end * v_place + d, v)
    most = tl.sum(q * k.to(tl.float32), 0)
    total = most * 0.0 + 1.0
    found = v.to(tl.float32)
    for first in tl.range(0, end, block, num_stages=ahead):
        at = first + tl.arange(0, block)
        past = at < end
        whose = at * 0 + row
        if moved:
            whose = tl.load(origin + row * o_row + at, mask=past, other=0)
        whose = whose.to(tl.int64)
        k_at = keys + (whose * k_row + group * k_group + at * k_place)[:, None] + d[None, :]
        v_at = values + (whose * v_row + group * v_group + at * v_place)[:, None] + d[None, :]
        k_past = tl.load(k_at, mask=past[:, None], other=0.0)
        v_past = tl.load(v_at, mask=past[:, None], other=0.0)
        scores = tl.where(past, tl.sum(q[None, :] * k_past.to(tl.float32), 1), float("-inf"))
        more = tl.maximum(most, tl.max(scores, 0))
        fade, weights = tl.exp2(most - more), tl.exp2(scores - more)
        total = total * fade + tl.sum(weights, 0)
        found = found * fade + tl.sum(weights[:, None] * v_past.to(tl.float32), 0)
        most = more
    tl.store(out + row * out_row + head * out_head + d, (found / total).to(out.dtype.element_ty))
