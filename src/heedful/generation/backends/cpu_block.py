"""A transformer block for one more token per row on a CPU: rows × width in, rows × width out, no modules called.

The rows may belong to several KV caches: matrix products run over all rows at once, attention cache by cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from heedful.generation.backends.cpu_linear import CpuLinear
from heedful.layers.kv_cache import LayerKVCache
from heedful.layers.multi_head_attention import SelfAttention
from heedful.layers.positions import Rotation, rotate
from heedful.shapes import Float

TensorFunction = Callable[[Tensor], Tensor]


class CacheRows(NamedTuple):
    """Consecutive rows whose past is in one KV cache, and their attention masks."""

    rows: int
    past_bias: Tensor | None
    """−inf where a row's past is shorter than the longest; None if all are equally long."""
    memory_bias: Tensor | None
    """−inf beyond the end of a source; None if no source is padded."""


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
        self.first_norm, *self.cross_norm, self.last_norm = (norm_function(skip.norm) for skip in block.residual)

    def __call__(
        self,
        x: Float[Tensor, "rows width"],
        layers: Sequence[LayerKVCache],
        parts: Sequence[CacheRows],
        rotary: Rotation | None,
    ) -> Float[Tensor, "rows width"]:
        """Decode one token of each row."""
        return self._apply(
            x, lambda x: self._attend(x, layers, parts, rotary), lambda x: self._cross_attend(x, layers, parts)
        )

    def encode(
        self, x: Float[Tensor, "tokens width"], texts: int, rotary: Rotation | None, bias: Tensor | None
    ) -> Float[Tensor, "tokens width"]:
        """Encode all tokens of `texts` texts of one (padded) length."""
        return self._apply(x, lambda x: self._attend_within(x, texts, rotary, bias))

    def _apply(self, x: Tensor, attend: TensorFunction, cross_attend: TensorFunction | None = None) -> Tensor:
        """Each sub-layer with its residual connection and norm."""
        first, cross, last = self.first_norm, self.cross_norm, self.last_norm
        if self.pre_norm:
            x = x + attend(first(x))
            x = x + cross_attend(cross[0](x)) if cross and cross_attend else x
            return x + self._feed_forward(last(x))
        x = first(x + attend(x))
        x = cross[0](x + cross_attend(x)) if cross and cross_attend else x
        return last(x + self._feed_forward(x))

    def _attend_within(self, x: Tensor, texts: int, rotary: Rotation | None, bias: Tensor | None) -> Tensor:
        module = self.attention
        split = self.query_key_value(x).view(texts, len(x) // texts, -1).split_with_sizes(module.sizes, 2)
        heads = (module.heads, module.groups, module.groups)
        query, key, value = (
            part.view(*part.shape[:2], number, -1).transpose(1, 2) for part, number in zip(split, heads, strict=True)
        )
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        return self.output(_attention(module, query, key, value, bias).transpose(1, 2).reshape(len(x), -1))

    def _attend(
        self, x: Tensor, layers: Sequence[LayerKVCache], parts: Sequence[CacheRows], rotary: Rotation | None
    ) -> Tensor:
        module = self.attention
        query, key, value = _split_heads(self.query_key_value(x), module)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        heads, by_cache = [], [_split(projected, parts) for projected in (query, key, value)]
        for layer, part, query, *new in zip(layers, parts, *by_cache, strict=True):
            keys, values = layer.append(*new)
            heads.append(_attention(module, query, keys, values, part.past_bias))
        return self.output(_join(heads).reshape(x.shape[0], -1))

    def _cross_attend(self, x: Tensor, layers: Sequence[LayerKVCache], parts: Sequence[CacheRows]) -> Tensor:
        assert self.cross is not None
        module, heads = self.cross, []
        for layer, part, query in zip(layers, parts, _split(self.cross_query(x), parts), strict=True):
            keys, values = layer.contiguous_memory()
            query = query.view(keys.shape[0], -1, module.heads, module.d_k).transpose(1, 2)  # rows per source
            attended = _attention(module, query, keys, values, part.memory_bias)
            heads.append(attended.transpose(1, 2).reshape(part.rows, -1))
        return self.cross_output(_join(heads))

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner, activation = self.inward(x), self.feed_forward.activation
        if not self.feed_forward.gated:
            return self.outward(activation(inner))
        gate, inner = inner.chunk(2, dim=1)
        return self.outward(activation(gate) * inner)


def _attention(module: Any, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    grouped = module.groups != module.heads
    return scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=module.scale, enable_gqa=grouped)


def _split(x: Tensor, parts: Sequence[CacheRows]) -> Sequence[Tensor]:
    return (x,) if len(parts) == 1 else torch.split(x, [part.rows for part in parts])


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def cpu_linear(module: Any) -> CpuLinear:
    """A linear layer's weights packed for the CPU."""
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
