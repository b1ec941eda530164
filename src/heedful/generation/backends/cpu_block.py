"""A transformer block for one more token per row on a CPU: rows × width in, rows × width out, no modules called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from heedful.generation.backends.cpu_linear import CpuLinear
from heedful.layers.kv_cache import LayerKVCache
from heedful.layers.multi_head_attention import SelfAttention
from heedful.layers.positions import Rotation, rotate
from heedful.shapes import Float

TensorFunction = Callable[[Tensor], Tensor]


class CpuBlock:
    """Self-attention, optional cross-attention and feed-forward, each with its residual connection and norm."""

    def __init__(self, block: Any) -> None:
        self.attention, self.cross, self.feed_forward = block.attention, block.cross, block.feed_forward
        self.query_key_value, self.output = map(cpu_linear, (block.attention.query_key_value, block.attention.output))
        self.inward, self.outward = map(cpu_linear, (block.feed_forward.inward, block.feed_forward.outward))
        self.linears = [self.query_key_value, self.output, self.inward, self.outward]
        if block.cross is not None:
            self.cross_query, self.cross_output = map(cpu_linear, (block.cross.query, block.cross.output))
            self.linears += [self.cross_query, self.cross_output]
        self.pre_norm = block.residual[0].order == "pre"
        self.first_norm, *self.cross_norm, self.last_norm = (norm_function(each.norm) for each in block.residual)

    def __call__(
        self, x: Float[Tensor, "rows width"], cache: LayerKVCache, rotary: Rotation | None, mask: Tensor | None
    ) -> Float[Tensor, "rows width"]:
        first, cross, last = self.first_norm, self.cross_norm, self.last_norm
        if self.pre_norm:
            x = x + self._attend(first(x), cache, rotary)
            x = x + self._cross_attend(cross[0](x), cache, mask) if cross else x
            return x + self._feed_forward(last(x))
        x = first(x + self._attend(x, cache, rotary))
        x = cross[0](x + self._cross_attend(x, cache, mask)) if cross else x
        return last(x + self._feed_forward(x))

    def _attend(self, x: Tensor, cache: LayerKVCache, rotary: Rotation | None) -> Tensor:
        module, rows = self.attention, x.shape[0]
        query, key, value = _split_heads(self.query_key_value(x), module)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        keys, values = cache.append(key, value)
        grouped = module.groups != module.heads
        heads = scaled_dot_product_attention(query, keys, values, scale=module.scale, enable_gqa=grouped)
        return self.output(heads.reshape(rows, -1))

    def _cross_attend(self, x: Tensor, cache: LayerKVCache, mask: Tensor | None) -> Tensor:
        assert self.cross is not None
        assert cache.memory is not None
        module, (keys, values) = self.cross, cache.memory
        if not keys.is_contiguous() or not values.is_contiguous():  # read at every step: each head in one piece
            keys, values = cache.memory = keys.contiguous(), values.contiguous()
        query = self.cross_query(x).view(keys.shape[0], -1, module.heads, module.d_k).transpose(1, 2)  # rows per source
        heads = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=module.scale, enable_gqa=module.groups != module.heads
        )
        return self.cross_output(heads.transpose(1, 2).reshape(x.shape[0], -1))

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner, activation = self.inward(x), self.feed_forward.activation
        if not self.feed_forward.gated:
            return self.outward(activation(inner))
        gate, inner = inner.chunk(2, dim=1)
        return self.outward(activation(gate) * inner)


def cpu_linear(module: Any) -> CpuLinear:
    return CpuLinear(module.weight, module.bias)


def norm_function(norm: Any) -> TensorFunction:
    """A norm module as a function that skips the module call."""
    shape, weight, epsilon = norm.normalized_shape, norm.weight.detach(), norm.eps
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, epsilon)
    bias = None if norm.bias is None else norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


def _split_heads(x: Float[Tensor, "rows wide"], module: SelfAttention) -> tuple[Tensor, ...]:
    """Queries, keys and values: rows × heads × 1 × head width."""
    rows, heads, groups, d_k, d_v = x.shape[0], module.heads, module.groups, module.d_k, module.d_v
    if heads == groups and d_k == d_v:
        return x.view(rows, 3, heads, 1, d_k).unbind(1)
    q, k, v = x.split_with_sizes(module.sizes, 1)
    return q.view(rows, heads, 1, d_k), k.view(rows, groups, 1, d_k), v.view(rows, groups, 1, d_v)
