"""One decode step through all blocks of a decoder, for one new token in each of at most 4 rows.

Composes `decode_linear` and `decode_attention`: two or three kernel launches a sub-layer instead of about ten.
Torch equivalent: `layers.block.Block.forward`, block after block. GPU-only. Measured gain on an H200: 1.61,
1.41 and 1.11 times as fast a decode step of GPT-2 with 1, 2 and 4 rows; 0.77 times with 8, which it does not serve
(benchmarks/results/kernels-gpu.json).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from heedful.kernels.decode_attention import decode_attention
from heedful.kernels.decode_linear import decode_linear
from heedful.layers.activations import ACTIVATIONS
from heedful.layers.attention import fused_heads
from heedful.layers.feed_forward import FeedForward
from heedful.layers.kv_cache import KVCache, LayerKVCache
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention, join_heads, split_heads
from heedful.layers.positions import Rotation, rotate
from heedful.layers.residual import Residual
from heedful.shapes import Float


def fused_decode_step(
    blocks: Iterable[Any], x: Float[Tensor, "rows 1 width"], cache: KVCache, rotation: Rotation | None
) -> Float[Tensor, "rows 1 width"]:
    """Apply the blocks to one new token in each row, appending it to the cache."""
    stream = ResidualStream(x[:, 0])
    for block, layer in zip(blocks, cache.layers, strict=True):
        first, *middle, last = block.residual
        stream.add(first, _self_attention(block.attention, layer, cache, rotation))
        if block.cross is not None:
            stream.add(middle[0], _cross_attention(block.cross, layer, cache))
        stream.add(last, _feed_forward(block.feed_forward))
    return stream.x[:, None] if stream.norm is None else stream.norm(stream.x)[:, None]


Sublayer = Callable[[Tensor, nn.Module | None], tuple[Tensor, nn.Linear]]
"""Maps the residual stream and the norm before a sub-layer to its hidden values and the linear layer after them."""


class ResidualStream:
    """The residual stream x, and the post-norm not yet applied to it: the next kernel fuses it into its input."""

    def __init__(self, x: Float[Tensor, "rows width"]) -> None:
        self.x = x
        self.norm: nn.Module | None = None

    def add(self, residual: Residual, sublayer: Sublayer) -> None:
        pre_norm = residual.order == "pre"
        hidden, last = sublayer(self.x, residual.norm if pre_norm else self.norm)
        self.x = decode_linear(hidden, last, residual=self.x, residual_norm=self.norm)
        self.norm = None if pre_norm else residual.norm


def _self_attention(
    attention: SelfAttention, layer: LayerKVCache, cache: KVCache, rotation: Rotation | None
) -> Sublayer:
    linear: Any = attention.query_key_value

    def sublayer(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, nn.Linear]:
        projected = decode_linear(x, linear, norm=norm)[:, None]
        q, k, v = torch.split(projected, attention.sizes, dim=-1)
        query, key = split_heads(q, attention.heads), split_heads(k, attention.groups)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        assert cache.static_index is not None
        scale = attention.scale or attention.d_k**-0.5
        value = split_heads(v, attention.groups)
        return decode_attention(query, key, value, layer, cache.static_index, scale).flatten(1), attention.output

    return sublayer


def _cross_attention(cross: CrossAttention, layer: LayerKVCache, cache: KVCache) -> Sublayer:
    linear: Any = cross.query

    def sublayer(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, nn.Linear]:
        assert layer.memory is not None
        key, value = layer.memory
        query = decode_linear(x, linear, norm=norm).view(len(key), -1, cross.heads * cross.d_k)
        heads = fused_heads(
            split_heads(query, cross.heads), key, value, cache.memory_mask, scale=cross.scale, isolate=False
        )
        return join_heads(heads).reshape(len(x), -1), cross.output

    return sublayer


def _feed_forward(layer: FeedForward) -> Sublayer:
    name = next(name for name, function in ACTIVATIONS.items() if function is layer.activation)

    def sublayer(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, nn.Linear]:
        return decode_linear(x, layer.inward, norm=norm, activation=name, gated=layer.gated), layer.outward

    return sublayer
