"""One step of decoding in few kernels: a decoder's blocks, walked through with `next_linear` and `attend_next`.

The modules say what is computed; here it is computed for one new token in each of a few rows, on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from heedful.kernels.decode_attention import decode_attention
from heedful.kernels.decode_linear import NormWeights, decode_linear
from heedful.layers.activations import ACTIVATIONS
from heedful.layers.attention import CrossAttention, SelfAttention, fused_attention, join_heads, split_heads
from heedful.layers.feed_forward import FeedForward
from heedful.layers.kv_cache import KVCache, LayerKVCache
from heedful.layers.positions import Rotation, rotate
from heedful.layers.residual import Residual
from heedful.shapes import Float


def fused_decode_step(
    blocks: Iterable[Any], x: Float[Tensor, "rows 1 width"], state: KVCache, rotation: Rotation | None
) -> Float[Tensor, "rows 1 width"]:
    """What the blocks make of one new token in each row."""
    walk = ResidualStream(x[:, 0])
    for block, layer in zip(blocks, state.layers, strict=True):
        first, *middle, last = block.residual
        walk.add(first, _self_attention(block.attention, layer, state, rotation))
        if block.cross is not None:
            walk.add(middle[0], _cross_attention(block.cross, layer, state))
        walk.add(last, _feed_forward(block.feed_forward))
    return walk.x[:, None] if walk.norm is None else walk.norm(walk.x)[:, None]


Sublayer = Callable[[Tensor, NormWeights | None], tuple[Tensor, nn.Linear]]
"""From the stream and the norm to be put on it: what the sub-layer found, and the layer that writes it down."""


class ResidualStream:
    """The stream x, and the norm of post-norm blocks that is still to be put on it by whoever reads it."""

    def __init__(self, x: Float[Tensor, "rows width"]) -> None:
        self.x = x
        self.norm: nn.Module | None = None

    def add(self, residual: Residual, sublayer: Sublayer) -> None:
        pre = residual.order == "pre"
        found, last = sublayer(self.x, NormWeights.from_module(residual.norm if pre else self.norm))
        self.x = decode_linear(found, last, residual=self.x, residual_norm=None if pre else NormWeights.from_module(self.norm))
        self.norm = None if pre else residual.norm


def _self_attention(
    attention: SelfAttention, layer: LayerKVCache, state: KVCache, rotation: Rotation | None
) -> Sublayer:
    def found(x: Tensor, norm: NormWeights | None) -> tuple[Tensor, nn.Linear]:
        projected = decode_linear(x, attention.query_key_value, norm=norm)[:, None]
        q, k, v = torch.split(projected, attention.sizes, dim=-1)
        query, key = split_heads(q, attention.heads), split_heads(k, attention.groups)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        assert state.static_index is not None
        scale = attention.scale or attention.d_k**-0.5
        heads = decode_attention(query, key, split_heads(v, attention.groups), layer, state.static_index, scale)
        return heads.flatten(1), attention.output

    return found


def _cross_attention(cross: CrossAttention, layer: LayerKVCache, state: KVCache) -> Sublayer:
    def found(x: Tensor, norm: NormWeights | None) -> tuple[Tensor, nn.Linear]:
        assert layer.memory is not None
        key, value = layer.memory
        asked = decode_linear(x, cross.query, norm=norm).view(len(key), -1, cross.heads * cross.d_k)
        heads = fused_attention(split_heads(asked, cross.heads), key, value, state.memory_mask, scale=cross.scale)
        return join_heads(heads).reshape(len(x), -1), cross.output

    return found


def _feed_forward(layer: FeedForward) -> Sublayer:
    name = next(name for name, function in ACTIVATIONS.items() if function is layer.activation)

    def found(x: Tensor, norm: NormWeights | None) -> tuple[Tensor, nn.Linear]:
        return decode_linear(x, layer.inward, norm=norm, activation=name, gated=layer.gated), layer.outward

    return found
