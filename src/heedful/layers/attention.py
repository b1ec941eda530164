"""Attention: the reference equation, and the fused kernels tested against it (A1–A3, A6, A8)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from heedful.errors import UsageError
from heedful.kernels import dispatch
from heedful.layers.attention_inputs import check_attention_inputs, check_equal_widths, check_scores
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.nonfinite import isolate_nonfinite
from heedful.layers.scores import Score, dot, scaled_dot
from heedful.layers.window_attention import window_attention
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

    This is the reference the fused kernel is tested against. A query that may attend to nothing reads zeros, not NaN,
    and a key or value that is NaN or infinite reaches only the queries that may attend to it.
    """
    check_attention_inputs(query, key, value, mask=mask)
    table = _mask_table(query, key, mask)
    key, value, nonfinite = isolate_nonfinite(query, key, value, table)
    weights = _weights(query, key, table, score, softmax)
    return _fill(weights @ value, nonfinite, torch.nan)


def attention_weights(
    query: Float[Tensor, "*axes queries d_q"],
    key: Float[Tensor, "*axes keys d_k"],
    mask: Mask | None = None,
    *,
    score: Score = scaled_dot,
    softmax: bool = True,
) -> Float[Tensor, "*axes queries keys"]:
    """Attention weights: for each query a distribution over the keys (A9).

    Without `softmax` the scores themselves are the weights: *linear attention* (A2).
    """
    check_attention_inputs(query, key, mask=mask)
    table = _mask_table(query, key, mask)
    key, _, nonfinite = isolate_nonfinite(query, key, key, table)
    weights = _weights(query, key, table, score, softmax)
    return _fill(weights, nonfinite, torch.nan)


def _mask_table(query: Tensor, key: Tensor, mask: Mask | None) -> Mask:
    """The mask as one table that fits the scores."""
    queries, keys = query.shape[-2], key.shape[-2]
    table = (mask or UNMASKED).as_table(queries, keys, query.device)
    table.check(*query.shape[:-1], keys)
    return table


def _weights(query: Tensor, key: Tensor, mask: Mask, score: Score, softmax: bool) -> Tensor:
    """softmax(score(Q, K) + B) over the keys that the mask allows; without the softmax, the scores themselves."""
    scores, allowed = _scores(query, key, score), mask.allowed
    if mask.bias is not None:
        scores = scores + mask.bias.to(scores.dtype)
        allowed = mask.bias > -torch.inf  # a resolved bias is −inf wherever the mask forbids attending
    return masked_softmax(scores, allowed) if softmax else _fill(scores, _not(allowed), 0.0)


def _scores(query: Tensor, key: Tensor, score: Score) -> Tensor:
    if score in (dot, scaled_dot):
        check_equal_widths(query, key)
    if not callable(score):
        raise UsageError(
            f"score must be a function of queries and keys, such as heedful.layers.scores.scaled_dot; got {score!r:.60}"
        )
    scores = score(query, key)
    check_scores(scores, query, key)
    return scores


def masked_softmax(
    scores: Float[Tensor, "*axes queries keys"], allowed: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*axes queries keys"]:
    """exp(s_ij) / Σ_j exp(s_ij) over the allowed keys j; zeros where there are none (A6).

    The lowest finite number instead of −inf keeps a row without keys, and its gradient, finite.
    """
    masked = _not(allowed)
    weights = torch.softmax(_fill(scores, masked, torch.finfo(scores.dtype).min), dim=-1)
    return _fill(weights, masked, 0.0)


def _not(allowed: Tensor | None) -> Tensor | None:
    return None if allowed is None else ~allowed


def _fill(x: Tensor, where: Tensor | None, number: float) -> Tensor:
    return x if where is None else x.masked_fill(where, number)


def fused_attention(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch groups keys d_k"],
    value: Float[Tensor, "batch groups keys d_v"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries d_v"]:
    """`attention` by a fused kernel, which never stores the n_q × n_k weights (A8): PyTorch's, or ours for short texts.

    With fewer key/value heads than query heads, groups of query heads share one (Ainslie 2023).
    """
    check_attention_inputs(query, key, value, mask=mask, heads=True)
    check_equal_widths(query, key)
    if not 0 <= dropout <= 1:
        raise UsageError(f"dropout must be between 0 and 1, got {dropout}")
    return fused_heads(query, key, value, mask, scale=scale, dropout=dropout, isolate=True)


def fused_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    *,
    scale: float | None,
    dropout: float = 0.0,
    isolate: bool,
) -> Tensor:
    """`fused_attention` for tensors whose shapes have been checked.

    `isolate`: keep NaN and infinities of masked keys and values out of the results. On a CPU that costs hardly
    anything; on a GPU several passes over keys and values.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    mask = (mask or UNMASKED).resolve(queries, keys, query.device)
    mask.check(*query.shape[:-1], keys)
    attend = partial(_attend, scale=scale, dropout=dropout, isolate=isolate)
    if mask.window is not None:
        return window_attention(attend, query, key, value, mask)
    return attend(query, key, value, mask)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, *, scale: float | None, dropout: float, isolate: bool
) -> Tensor:
    """Attention under a resolved mask, by the fastest kernel that supports it."""
    nonfinite, shared = None, query.shape[1] != key.shape[1]
    if isolate:
        key, value, nonfinite = isolate_nonfinite(query, key, value, mask)
    if query.is_cuda and not dropout and not shared:
        parts = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if dispatch.has_short_attention(*parts):
            return _fill(dispatch.short_attention(parts, mask, scale).transpose(1, 2), nonfinite, torch.nan)
    bias = mask.allowed if mask.bias is None else mask.bias.to(query.dtype)
    heads = scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=mask.causal, scale=scale, enable_gqa=shared
    )
    if query.is_cuda and mask.allowed is not None:
        # CUDA's half-precision kernels average *all* values for a query that may attend to nothing.
        heads = heads.masked_fill(~mask.allowed.any(-1, keepdim=True), 0.0)
    return _fill(heads, nonfinite, torch.nan)
