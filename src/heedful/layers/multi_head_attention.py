"""Multi-head attention: self-attention and cross-attention (A4, A5)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop

from heedful.errors import UsageError, require_positive
from heedful.kernels import dispatch
from heedful.layers.activations import ACTIVATIONS, ActivationName
from heedful.layers.attention import attention_weights, fused_heads
from heedful.layers.kv_cache import LayerKVCache
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.positions import Rotation, rotate
from heedful.layers.scores import (
    WITHOUT_CONTENT,
    PositionScore,
    Score,
    ScoreName,
    ScoreScale,
    make_score,
    scale_factor,
)
from heedful.layers.taps import Tapped
from heedful.layers.token_projection import ProjectionName, make_projection
from heedful.shapes import Float, Int


class MultiHeadAttention(Tapped):
    """Several attention heads in parallel; W_o combines their outputs.

    MultiHead = Concat(h_1 … h_H) W_o = Σ_h h_h W_h        Vaswani 2017, 3.2.2 · A5

    H·d_k = d is only the default: `head_width` (d_k), `value_width` (d_v) and `heads` are independent, and
    `key_value_heads` < `heads` lets several query heads share one key/value head. `projection="network"` computes
    queries, keys and values by small networks (A10); a score that reads no content needs no queries and keys.

    `head_activation`: h = act(Σ_j α_j v_j). With a score by position and without the softmax, that is a feed-forward
    network over the tokens with a separate weight for each pair of positions (Q1).
    """

    points: tuple[str, ...] = ("mask", "queries", "keys", "values", "scores", "weights", "heads", "output")

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        value_width: int | None = None,
        key_value_heads: int | None = None,
        score: ScoreName = "scaled_dot",
        score_scale: ScoreScale | None = None,
        softmax: bool = True,
        head_activation: ActivationName = "identity",
        projection: ProjectionName = "linear",
        projection_activation: ActivationName = "relu",
        max_length: int | None = None,
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
        self.d_k = 0 if score in WITHOUT_CONTENT else self.d_k
        self.score = make_score(score, self.d_k, self.d_k, heads=heads, scale=score_scale, max_length=max_length)
        self.softmax = softmax
        self.fused = softmax and score in ("dot", "scaled_dot") and score_scale != "learned"
        self.scale = scale_factor(score_scale, self.d_k) or (1.0 if score == "dot" else None)
        self.activation = None if head_activation == "identity" else ACTIVATIONS[head_activation]
        self._make_projection = partial(make_projection, projection, width, activation=projection_activation, bias=bias)
        self.dropout = dropout
        self.output = nn.Linear(heads * self.d_v, width, bias=bias)  # W_o

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, positions: Tensor | None = None
    ) -> Tensor:
        """The layer's output from queries, keys and values split into heads.

        `positions`: the position of each query among the keys, for scores by position; None: the last ones.
        """
        query, key, value = self.tap("queries", query), self.tap("keys", key), self.tap("values", value)
        attend = self._observed_heads if self.has_listener() else self._attend_heads
        heads = attend(query, key, value, mask, self._score_at(positions))
        return self.tap("output", self.output(join_heads(heads)))

    def _score_at(self, positions: Tensor | None) -> Score:
        """The score function for queries at these positions."""
        if not isinstance(table := self.score, PositionScore):
            return self.score

        def score(query: Tensor, key: Tensor) -> Tensor:
            queries, keys = query.shape[-2], key.shape[-2]
            last = torch.arange(keys - queries, keys, device=query.device)[None]
            return table(last if positions is None else positions, keys).expand(*query.shape[:-1], keys)

        return score

    def _short_attention(self, mask: Mask | None, *projected: Tensor) -> Tensor | None:
        """The layer's output by the kernel for short texts, straight from the projections.

        None if the kernel does not support these inputs or a tap is listening.
        """
        plain = self.fused and self.activation is None and self.groups == self.heads and self.d_k == self.d_v
        if not plain or (self.training and self.dropout) or self.has_listener() or not projected[0].is_cuda:
            return None
        parts = [part.view(*part.shape[:2], -1, self.d_k) for part in projected]
        if not dispatch.has_short_attention(*parts):
            return None
        queries, keys = parts[0].shape[1], parts[-1].shape[1]
        mask = (mask or UNMASKED).resolve(queries, keys, parts[0].device)
        mask.check(len(parts[0]), self.heads, queries, keys)
        return self.output(dispatch.short_attention(parts, mask, self.scale).flatten(2))

    def _attend_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, score: Score) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            isolate = not query.is_cuda  # padding of a healthy model is finite, and on a GPU the check takes time
            heads = fused_heads(query, key, value, mask, scale=self.scale, dropout=dropout, isolate=isolate)
        else:
            weights = attention_weights(query, self._repeat_groups(key), mask, score=score, softmax=self.softmax)
            heads = drop(weights, dropout) @ self._repeat_groups(value)
        return heads if self.activation is None else self.activation(heads)

    def _observed_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, score: Score) -> Tensor:
        """The output of every head, computed with all values passed to their taps.

        The fused kernel returns no weights: they are computed again, exactly. Listeners that only record leave the
        kernel's result alone; an edit of scores or weights does not.
        """
        mask = mask or UNMASKED
        allowed = mask.dense(query.shape[-2], key.shape[-2], query.device)
        allowed = allowed.expand(len(query), self.heads, query.shape[-2], key.shape[-2])
        edited = self.tap("mask", allowed, allowed)
        if edited is not allowed:
            mask, allowed = mask.with_allowed(edited), edited
        heads = None
        if self.fused and not self.has_listener("scores", "weights", edits_only=True):
            heads = self._attend_heads(query, key, value, mask, score)
        if heads is None or self.has_listener("scores", "weights"):

            def observed(query: Tensor, key: Tensor) -> Tensor:
                return self.tap("scores", score(query, key), allowed)

            weights = attention_weights(query, self._repeat_groups(key), mask, score=observed, softmax=self.softmax)
            weights = self.tap("weights", weights, allowed)
            if heads is None:
                heads = drop(weights, self.dropout if self.training else 0.0) @ self._repeat_groups(value)
                heads = heads if self.activation is None else self.activation(heads)
        return self.tap("heads", heads, allowed)

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
    """Queries, keys and values from one sequence: Q = X W_q, K = X W_k, V = X W_v (A4).

    The taps `new_queries` and `new_keys` pass the projections of this call's tokens, before any rotation; `queries`,
    `keys` and `values` pass what attention reads, rotated, with the KV cache.
    """

    points = ("new_queries", "new_keys", *MultiHeadAttention.points)

    def __init__(self, width: int, heads: int, **options: object) -> None:
        super().__init__(width, heads, **options)  # type: ignore[arg-type]
        self.sizes = [self.heads * self.d_k, self.groups * self.d_k, self.groups * self.d_v]
        self.query_key_value = self._make_projection(self.sizes)  # W_q, W_k, W_v

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask | None = None,
        *,
        rotation: Rotation | None = None,
        positions: Int[Tensor, "#batch tokens"] | None = None,
        cache: LayerKVCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        projected = self.query_key_value(x)
        if rotation is None and cache is None and (output := self._short_attention(mask, projected)) is not None:
            return output
        q, k, v = projected.split(self.sizes, dim=-1)
        query, key, value = split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)
        query, key = self.tap("new_queries", query), self.tap("new_keys", key)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None and mask is None and cache.parent.static_index is not None:
            scale = self.scale or self.d_k**-0.5
            heads = dispatch.decode_attention(query, key, value, cache, cache.parent.static_index, scale)
            return self.output(join_heads(heads))
        if cache is not None:
            key, value = cache.append(key, value)
        return self.attend(query, key, value, mask, positions)


class CrossAttention(MultiHeadAttention):
    """Queries from one sequence, keys and values from another, of any length (A4)."""

    def __init__(self, width: int, heads: int, **options: object) -> None:
        super().__init__(width, heads, **options)  # type: ignore[arg-type]
        self.query = self._make_projection([self.heads * self.d_k]) if self.d_k else None
        self.sizes = [self.groups * self.d_k, self.groups * self.d_v]
        self.key_value = self._make_projection(self.sizes)

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
        *,
        positions: Int[Tensor, "#batch queries"] | None = None,
    ) -> Float[Tensor, "batch queries width"]:
        if positions is None and isinstance(self.score, PositionScore):
            positions = torch.arange(x.shape[1], device=x.device)[None]
        if isinstance(memory, Tensor):
            query, key_value = self._queries(x), self.key_value(memory)
            if (output := self._short_attention(mask, query, key_value)) is not None:
                return output
            return self.attend(split_heads(query, self.heads), *self._split(key_value), mask, positions)
        key, value = memory
        if len(key) and len(x) > len(key) and self.has_listener():  # taps see one row per beam
            beams = len(x) // len(key)
            key, value = key.repeat_interleave(beams, 0), value.repeat_interleave(beams, 0)
            mask = None if mask is None else mask.repeat(beams)
        grouped = x.view(len(key), -1, x.shape[2]) if len(key) else x  # beams of one source attend as one row
        if positions is not None:
            positions = positions.expand(x.shape[:2]).reshape(grouped.shape[:2])
        return self.attend(split_heads(self._queries(grouped), self.heads), key, value, mask, positions).view_as(x)

    def _queries(self, x: Tensor) -> Tensor:
        """Q = X W_q; queries without features for a score that reads no content."""
        return x.new_zeros(*x.shape[:2], 0) if self.query is None else self.query(x)


def split_heads(x: Float[Tensor, "batch tokens wide"], heads: int) -> Float[Tensor, "batch heads tokens narrow"]:
    """Split the last axis into heads: batch × heads × tokens × width of a head."""
    batch, tokens, wide = x.shape
    return x.view(batch, tokens, heads, wide // heads).transpose(1, 2)


def join_heads(x: Float[Tensor, "batch heads tokens narrow"]) -> Float[Tensor, "batch tokens wide"]:
    """Concatenate the heads again: batch × tokens × heads · width."""
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
    """The number of key/value heads; UsageError if query heads cannot share them evenly."""
    if key_value_heads is None or heads % key_value_heads == 0:
        return key_value_heads or heads
    fitting = ", ".join(str(h) for h in range(1, heads + 1) if heads % h == 0)
    raise UsageError(f"{heads} heads cannot share {key_value_heads} key/value heads evenly; use one of {fitting}")
