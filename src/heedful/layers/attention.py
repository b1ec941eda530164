"""Attention: the equation, the fast kernel that equals it, and the layers made of them (A1–A6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from heedful.errors import UsageError, require_positive
from heedful.layers.kv_cache import LayerKVCache
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.positions import Rotation, rotate
from heedful.layers.scores import Score, ScoreName, make_score, scaled_dot
from heedful.layers.taps import Tapped
from heedful.shapes import Bool, Float


def attention(
    query: Float[Tensor, "*axes queries d_q"],
    key: Float[Tensor, "*axes keys d_k"],
    value: Float[Tensor, "*axes keys d_v"],
    mask: Mask | None = None,
    *,
    score: Score = scaled_dot,
    softmax: bool = True,
) -> Float[Tensor, "*axes queries d_v"]:
    """Read values by soft look-up: each query takes a weighted mean of all values.

    A(Q, K, V) = softmax(score(Q, K) + B) V        Vaswani 2017, eq. 1 · A1, A3, A6

    This is the reference the fused kernel is tested against. A query that may attend to
    nothing reads zeros rather than NaN, so padding can never poison a batch.
    """
    return attention_weights(query, key, mask, score=score, softmax=softmax) @ value


def attention_weights(
    query: Float[Tensor, "*axes queries d_q"],
    key: Float[Tensor, "*axes keys d_k"],
    mask: Mask | None = None,
    *,
    score: Score = scaled_dot,
    softmax: bool = True,
) -> Float[Tensor, "*axes queries keys"]:
    """Who attends to whom: one row per query, a distribution over the keys (A9).

    Without `softmax` the scores themselves are the weights: *linear attention* (A2).
    """
    scores = score(query, key)
    queries, keys = scores.shape[-2:]
    mask = (mask or UNMASKED).resolve(queries, keys, scores.device)
    mask.check(*scores.shape)
    allowed = mask.dense(queries, keys, scores.device) if mask.causal else mask.allowed
    if mask.bias is not None:
        scores = scores + mask.bias.to(scores.dtype)
        allowed = mask.bias > -torch.inf  # settled: closed wherever the mask is, and where B itself is
    return masked_softmax(scores, allowed) if softmax else _closed_to(0.0, scores, allowed)


def masked_softmax(
    scores: Float[Tensor, "*axes queries keys"], allowed: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*axes queries keys"]:
    """exp(s_ij) / Σ_j exp(s_ij) over the allowed keys j; zeros where there are none (A6).

    The lowest finite number instead of −inf keeps a row without keys, and its gradient, finite.
    """
    weights = torch.softmax(_closed_to(torch.finfo(scores.dtype).min, scores, allowed), dim=-1)
    return _closed_to(0.0, weights, allowed)


def _closed_to(number: float, table: Tensor, allowed: Tensor | None) -> Tensor:
    return table if allowed is None else table.masked_fill(~allowed, number)


def fused_attention(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch groups keys d_k"],
    value: Float[Tensor, "batch groups keys d_v"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries d_v"]:
    """`attention` by PyTorch's kernel, which never stores the n_q × n_k weights (A8); of short texts on a GPU, by ours.

    Fewer key/value heads than query heads are shared in groups (Ainslie 2023).
    """
    mask = (mask or UNMASKED).resolve(query.shape[-2], key.shape[-2], query.device)
    mask.check(*query.shape[:-1], key.shape[-2])
    if query.is_cuda and not dropout and query.shape[1] == key.shape[1]:
        from heedful.kernels.short_attention import is_short, short_attention  # there is none without a GPU

        parts = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if is_short(*parts):
            return short_attention(parts, mask, scale).transpose(1, 2)
    bias = mask.allowed if mask.bias is None else mask.bias.to(query.dtype)
    heads = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias,
        dropout_p=dropout,
        is_causal=mask.causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if query.is_cuda and mask.allowed is not None:
        # Half-precision kernels there read *everything* in a row that may read nothing.
        heads = heads.masked_fill(~mask.allowed.any(-1, keepdim=True), 0.0)
    return heads


@contextmanager
def cudnn_attention(enabled: bool) -> Iterator[None]:
    """cuDNN's attention makes a plan for every shape it meets, which takes it long: it pays where all batches have one.

    On an H200 a step of GPT-2 (64 × 1,024 tokens) took 124 ms with it and 129 without; batches bucketed by length
    averaged 83 ms with it and 47 without.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(enabled)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


class MultiHeadAttention(Tapped):
    """Several heads read side by side; W_o joins what they found.

    MultiHead = Concat(h_1 … h_H) W_o = Σ_h h_h W_h        Vaswani 2017, 3.2.2 · A5

    The usual H·d_k = d is only a default: `head_width` (d_k), `value_width` (d_v) and `heads` are
    free, and `key_value_heads` < `heads` lets several query heads share one key/value head.
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
            width=width,
            heads=heads,
            head_width=head_width,
            value_width=value_width,
            key_value_heads=key_value_heads,
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
        """From split queries, keys and values to the layer's output."""
        query, key, value = self.tap("queries", query), self.tap("keys", key), self.tap("values", value)
        heads = self.tap("heads", self._look_up(query, key, value, mask))
        return self.tap("output", self.output(join_heads(heads)))

    def read_short(self, mask: Mask | None, *projected: Tensor) -> Tensor | None:
        """The layer's output by the kernel for short texts, from projections as they are; or nothing: it is not made
        for these, or somebody looks on."""
        plain = self.fused and self.groups == self.heads and not (self.training and self.dropout)
        if not plain or self.listeners or not projected[0].is_cuda:
            return None
        from heedful.kernels.short_attention import is_short, short_attention  # there is none without a GPU

        parts = [part.view(*part.shape[:2], -1, self.d_k) for part in projected] if self.d_k == self.d_v else []
        if not parts or not is_short(*parts):
            return None
        queries, keys = parts[0].shape[1], parts[-1].shape[1]
        mask = (mask or UNMASKED).resolve(queries, keys, parts[0].device)
        mask.check(len(parts[0]), self.heads, queries, keys)
        found: Tensor = self.output(short_attention(parts, mask, self.scale).flatten(2))
        return found

    def _look_up(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            heads = fused_attention(query, key, value, mask, scale=self.scale, dropout=dropout)
            if "weights" not in self.listeners:
                return heads
        # The kernel does not show its weights: compute them again, exactly, for whoever asks.
        # Watching leaves the kernel's result alone; putting other weights in their place does not.
        weights = attention_weights(query, self._every_head(key), mask, score=self.score, softmax=self.softmax)
        shown = self.tap("weights", weights)
        if self.fused and shown is weights:
            return heads
        return drop(shown, dropout) @ self._every_head(value)

    def _every_head(self, shared: Tensor) -> Tensor:
        """A copy of each shared key or value head for every query head that reads it."""
        return shared if self.groups == self.heads else shared.repeat_interleave(self.heads // self.groups, 1)

    def contributions(
        self, heads: Float[Tensor, "batch heads queries d_v"]
    ) -> Float[Tensor, "batch heads queries width"]:
        """h_h W_h: what each head adds to the output, whose sum (plus bias) the output is (A5)."""
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
        if rotation is None and cache is None and (output := self.read_short(mask, projected)) is not None:
            return output
        q, k, v = projected.split(self.sizes, dim=-1)
        query, key, value = (
            split_heads(q, self.heads),
            split_heads(k, self.groups),
            split_heads(v, self.groups),
        )
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None and mask is None and cache.cache.static_index is not None:
            return self._next(query, key, value, cache)
        if cache is not None:
            key, value = cache.append(key, value)
        return self.attend(query, key, value, mask)

    def has_kernel(self, x: Tensor) -> bool:
        """Whether one kernel can do a step of decoding: plain attention, heads of a common width, a GPU."""
        return self.fused and self.d_k == self.d_v and self.d_k in (16, 32, 64, 128, 256) and x.is_cuda

    def _next(self, query: Tensor, key: Tensor, value: Tensor, state: LayerKVCache) -> Tensor:
        from heedful.kernels.decode_attention import decode_attention  # there is none without a GPU

        assert state.cache.static_index is not None
        heads = decode_attention(query, key, value, state, state.cache.static_index, self.scale or self.d_k**-0.5)
        output: Tensor = self.output(join_heads(heads))
        return output


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
        """K and V of what is read: the same at every decoding step, so computed once."""
        return self._split(self.key_value(memory))

    def _split(self, known: Tensor) -> tuple[Tensor, Tensor]:
        k, v = torch.split(known, self.sizes, dim=-1)
        return split_heads(k, self.groups), split_heads(v, self.groups)

    def forward(
        self,
        x: Float[Tensor, "batch queries width"],
        memory: Float[Tensor, "batch keys width"] | tuple[Tensor, Tensor],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch queries width"]:
        if isinstance(memory, Tensor):
            asked, known = self.query(x), self.key_value(memory)
            if (output := self.read_short(mask, asked, known)) is not None:
                return output
            return self.attend(split_heads(asked, self.heads), *self._split(known), mask)
        key, value = memory
        asked = x.view(len(key), -1, x.shape[2]) if len(key) else x  # rows that share a memory ask side by side
        return self.attend(split_heads(self.query(asked), self.heads), key, value, mask).view_as(x)


def split_heads(x: Float[Tensor, "batch tokens wide"], heads: int) -> Float[Tensor, "batch heads tokens narrow"]:
    batch, tokens, wide = x.shape
    return x.view(batch, tokens, heads, wide // heads).transpose(1, 2)


def join_heads(
    x: Float[Tensor, "batch heads tokens narrow"],
) -> Float[Tensor, "batch tokens wide"]:
    return x.transpose(1, 2).flatten(2)


def even_split(width: int, heads: int) -> int:
    """d_k = d / H, or an error that names what would divide."""
    if width % heads == 0:
        return width // heads
    down, up = width // heads * heads, (width // heads + 1) * heads
    widths = " or ".join(str(w) for w in (down, up) if w > 0)
    fitting = [h for h in range(1, width + 1) if width % h == 0]
    below = max((h for h in fitting if h < heads), default=None)
    above = min((h for h in fitting if h > heads), default=None)
    counts = " or ".join(str(h) for h in (below, above) if h is not None)
    raise UsageError(
        f"width {width} is not divisible by {heads} heads; use width {widths}, or {counts} heads, "
        "or set head_width yourself"
    )


def shared_heads(heads: int, key_value_heads: int | None) -> int:
    if key_value_heads is None or heads % key_value_heads == 0:
        return key_value_heads or heads
    fitting = ", ".join(str(h) for h in range(1, heads + 1) if heads % h == 0)
    raise UsageError(f"{heads} heads cannot share {key_value_heads} key/value heads evenly; use one of {fitting}")
