"""Multi-head attention: self-attention and cross-attention (A4, A5)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop

from heedful.errors import UsageError, require_positive
from heedful.kernels import dispatch
from heedful.layers.attention import attention_weights, fused_heads
from heedful.layers.kv_cache import LayerKVCache
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.positions import Rotation, rotate
from heedful.layers.scores import ScoreName, make_score
from heedful.layers.taps import Tapped
from heedful.shapes import Float


class MultiHeadAttention(Tapped):
    """Several attention heads in parallel; W_o combines their outputs.

    MultiHead = Concat(h_1 … h_H) W_o = Σ_h h_h W_h        Vaswani 2017, 3.2.2 · A5

    H·d_k = d is only the default: `head_width` (d_k), `value_width` (d_v) and `heads` are independent, and
    `key_value_heads` < `heads` lets several query heads share one key/value head.
    """

    points: ClassVar[tuple[str, ...]] = ("queries", "keys", "values", "weights", "heads", "output")

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        value_width: int | None = None,
        key_value_heads: int | None = None,
        score: ScoreName = "scaled_dot",
        softmax: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(
            width=width, heads=heads, head_width=head_width, value_width=value_width, key_value_heads=key_value_heads
        )
        self.heads = heads
        self.groups = shared_heads(heads, key_value_heads)
        self.d_k = even_split(width, heads) if head_width is None else head_width
        self.d_v = self.d_k if value_width is None else value_width
        self.score = make_score(score, self.d_k, self.d_k, heads=heads)
        self.softmax = softmax
        self.fused = softmax and score in ("dot", "scaled_dot")
        self.scale = 1.0 if score == "dot" else None
        self.dropout = dropout
        self.output = nn.Linear(heads * self.d_v, width, bias=bias)  # W_o

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        """The layer's output from queries, keys and values split into heads."""
        query, key, value = self.tap("queries", query), self.tap("keys", key), self.tap("values", value)
        heads = self.tap("heads", self._attend_heads(query, key, value, mask))
        return self.tap("output", self.output(join_heads(heads)))

    def _short_attention(self, mask: Mask | None, *projected: Tensor) -> Tensor | None:
        """The layer's output by the kernel for short texts, straight from the projections.

        None if the kernel does not support these inputs or a tap is listening.
        """
        plain = self.fused and self.groups == self.heads and self.d_k == self.d_v
        if not plain or (self.training and self.dropout) or self.listeners or not projected[0].is_cuda:
            return None
        parts = [part.view(*part.shape[:2], -1, self.d_k) for part in projected]
        if not dispatch.has_short_attention(*parts):
            return None
        queries, keys = parts[0].shape[1], parts[-1].shape[1]
        mask = (mask or UNMASKED).resolve(queries, keys, parts[0].device)
        mask.check(len(parts[0]), self.heads, queries, keys)
        return self.output(dispatch.short_attention(parts, mask, self.scale).flatten(2))

    def _attend_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            isolate = not query.is_cuda  # padding of a healthy model is finite, and on a GPU making sure has a price
            heads = fused_heads(query, key, value, mask, scale=self.scale, dropout=dropout, isolate=isolate)
            if "weights" not in self.listeners:
                return heads
        # The fused kernel does not return its weights: compute them again, exactly, for the tap.
        # A tap that only records leaves the kernel's result alone; one that replaces the weights does not.
        weights = attention_weights(query, self._repeat_groups(key), mask, score=self.score, softmax=self.softmax)
        tapped = self.tap("weights", weights)
        if self.fused and tapped is weights:
            return heads
        return drop(tapped, dropout) @ self._repeat_groups(value)

    def _repeat_groups(self, shared: Tensor) -> Tensor:
        """Repeat each shared key or value head for every query head of its group."""
        return shared if self.groups == self.heads else shared.repeat_interleave(self.heads // self.groups, 1)

    def contributions(
        self, heads: Float[Tensor, "batch heads queries d_v"]
    ) -> Float[Tensor, "batch heads queries width"]:
        """h_h W_h: each head's contribution; their sum (plus bias) is the output (A5)."""
        weight = self.output.weight.view(-1, self.heads, self.d_v)  # width heads d_v
        return torch.einsum("bhqv,whv->bhqw", heads, weight)


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values from one sequence: Q = X W_q, K = X W_k, V = X W_v (A4)."""

    def __init__(self, width: int, heads: int, **options: object) -> None:
        super().__init__(width, heads, **options)  # type: ignore[arg-type]
        self.sizes = [self.heads * self.d_k, self.groups * self.d_k, self.groups * self.d_v]
        # W_q, W_k, W_v side by side: one product instead of three.
        self.query_key_value = nn.Linear(width, sum(self.sizes), bias=self.output.bias is not None)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask | None = None,
        *,
        rotation: Rotation | None = None,
        cache: LayerKVCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        projected = self.query_key_value(x)
        if rotation is None and cache is None and (output := self._short_attention(mask, projected)) is not None:
            return output
        q, k, v = projected.split(self.sizes, dim=-1)
        query, key, value = split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None and mask is None and cache.parent.static_index is not None:
            scale = self.scale or self.d_k**-0.5
            heads = dispatch.decode_attention(query, key, value, cache, cache.parent.static_index, scale)
            return self.output(join_heads(heads))
        if cache is not None:
            key, value = cache.append(key, value)
        return self.attend(query, key, value, mask)


class CrossAttention(MultiHeadAttention):
    """Queries from one sequence, keys and values from another, of any length (A4)."""

    def __init__(self, width: int, heads: int, **options: object) -> None:
        super().__init__(width, heads, **options)  # type: ignore[arg-type]
        bias = self.output.bias is not None
        self.query = nn.Linear(width, self.heads * self.d_k, bias=bias)
        self.sizes = [self.groups * self.d_k, self.groups * self.d_v]
        self.key_value = nn.Linear(width, sum(self.sizes), bias=bias)

    def project(
        self, memory: Float[Tensor, "batch keys width"]
    ) -> tuple[Float[Tensor, "batch groups keys d_k"], Float[Tensor, "batch groups keys d_v"]]:
        """K and V of the memory: the same at every decode step, so computed once."""
        return self._split(self.key_value(memory))

    def _split(self, key_value: Tensor) -> tuple[Tensor, Tensor]:
        k, v = torch.split(key_value, self.sizes, dim=-1)
        return split_heads(k, self.groups), split_heads(v, self.groups)

    def forward(
        self,
        x: Float[Tensor, "batch queries width"],
        memory: Float[Tensor, "batch keys width"] | tuple[Tensor, Tensor],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch queries width"]:
        if isinstance(memory, Tensor):
            query, key_value = self.query(x), self.key_value(memory)
            if (output := self._short_attention(mask, query, key_value)) is not None:
                return output
            return self.attend(split_heads(query, self.heads), *self._split(key_value), mask)
        key, value = memory
        grouped = x.view(len(key), -1, x.shape[2]) if len(key) else x  # beams of one source attend as one row
        return self.attend(split_heads(self.query(grouped), self.heads), key, value, mask).view_as(x)


def split_heads(x: Float[Tensor, "batch tokens wide"], heads: int) -> Float[Tensor, "batch heads tokens narrow"]:
    batch, tokens, wide = x.shape
    return x.view(batch, tokens, heads, wide // heads).transpose(1, 2)


def join_heads(x: Float[Tensor, "batch heads tokens narrow"]) -> Float[Tensor, "batch tokens wide"]:
    return x.transpose(1, 2).flatten(2)


def even_split(width: int, heads: int) -> int:
    """d_k = d / H, or an error that suggests divisible sizes."""
    if width % heads == 0:
        return width // heads
    multiple = width // heads * heads
    widths = " or ".join(str(w) for w in (multiple, multiple + heads) if w > 0)
    fitting = [h for h in range(1, width + 1) if width % h == 0]
    counts = " or ".join(map(str, [h for h in fitting if h < heads][-1:] + [h for h in fitting if h > heads][:1]))
    raise UsageError(
        f"width {width} is not divisible by {heads} heads; use width {widths}, or {counts} heads, "
        "or set head_width yourself"
    )


def shared_heads(heads: int, key_value_heads: int | None) -> int:
    if key_value_heads is None or heads % key_value_heads == 0:
        return key_value_heads or heads
    fitting = ", ".join(str(h) for h in range(1, heads + 1) if heads % h == 0)
    raise UsageError(f"{heads} heads cannot share {key_value_heads} key/value heads evenly; use one of {fitting}")
