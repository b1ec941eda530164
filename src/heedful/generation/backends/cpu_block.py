"""A block of a transformer for one more token of each row: rows × width in, rows × width out, no modules called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from heedful.generation.backends.cpu_linear import CpuLinear
from heedful.layers.attention import SelfAttention
from heedful.layers.kv_cache import LayerKVCache
from heedful.layers.positions import Rotation, rotate
from heedful.shapes import Float

TensorFunction = Callable[[Tensor], Tensor]


class CpuBlock:
    """Self-attention, cross-attention if there is any, feed-forward: each around its norm."""

    def __init__(self, block: Any) -> None:
        self.attention, self.cross, self.feed_forward = block.attention, block.cross, block.feed_forward
        self.query_key_value, self.output = map(cpu_linear, (block.attention.query_key_value, block.attention.output))
        self.inward, self.outward = map(cpu_linear, (block.feed_forward.inward, block.feed_forward.outward))
        self.products = [self.query_key_value, self.output, self.inward, self.outward]
        if block.cross is not None:
            self.cross_query, self.cross_output = map(cpu_linear, (block.cross.query, block.cross.output))
            self.products += [self.cross_query, self.cross_output]
        self.pre = block.residual[0].order == "pre"
        self.first, *self.middle, self.last = (norm_function(residual.norm) for residual in block.residual)

    def __call__(
        self, x: Float[Tensor, "rows width"], layer: LayerKVCache, turn: Rotation | None, mask: Tensor | None
    ) -> Float[Tensor, "rows width"]:
        first, middle, last = self.first, self.middle, self.last
        if self.pre:
            x = x + self._attend(first(x), layer, turn)
            x = x + self._read(middle[0](x), layer, mask) if middle else x
            return x + self._feed(last(x))
        x = first(x + self._attend(x, layer, turn))
        x = middle[0](x + self._read(x, layer, mask)) if middle else x
        return last(x + self._feed(x))

    def _attend(self, x: Tensor, layer: LayerKVCache, turn: Rotation | None) -> Tensor:
        own, rows = self.attention, x.shape[0]
        query, key, value = _split(self.query_key_value(x), own)
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        keys, values = layer.append(key, value)
        heads = scaled_dot_product_attention(query, keys, values, scale=own.scale, enable_gqa=own.groups != own.heads)
        return self.output(heads.reshape(rows, -1))

    def _read(self, x: Tensor, layer: LayerKVCache, mask: Tensor | None) -> Tensor:
        assert self.cross is not None
        assert layer.memory is not None
        own, (keys, values) = self.cross, layer.memory
        if not keys.is_contiguous() or not values.is_contiguous():  # read at every step: each head in one piece
            keys, values = layer.memory = keys.contiguous(), values.contiguous()
        query = self.cross_query(x).view(keys.shape[0], -1, own.heads, own.d_k).transpose(1, 2)  # rows of one source
        heads = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=own.scale, enable_gqa=own.groups != own.heads
        )
        return self.cross_output(heads.transpose(1, 2).reshape(x.shape[0], -1))

    def _feed(self, x: Tensor) -> Tensor:
        inner, activation = self.inward(x), self.feed_forward.activation
        if not self.feed_forward.gated:
            return self.outward(activation(inner))
        gate, inner = inner.chunk(2, dim=1)
        return self.outward(activation(gate) * inner)


def cpu_linear(module: Any) -> CpuLinear:
    return CpuLinear(module.weight, module.bias)


def norm_function(norm: Any) -> TensorFunction:
    """A norm as a function."""
    shape, weight, epsilon = norm.normalized_shape, norm.weight.detach(), norm.eps
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, epsilon)
    bias = None if norm.bias is None else norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


def _split(x: Float[Tensor, "rows wide"], own: SelfAttention) -> tuple[Tensor, ...]:
    """Queries, keys and values: rows × heads × 1 × width of a head."""
    rows, heads, groups, d_k, d_v = x.shape[0], own.heads, own.groups, own.d_k, own.d_v
    if heads == groups and d_k == d_v:
        return x.view(rows, 3, heads, 1, d_k).unbind(1)
    q, k, v = x.split_with_sizes(own.sizes, 1)
    return q.view(rows, heads, 1, d_k), k.view(rows, groups, 1, d_k), v.view(rows, groups, 1, d_v)
