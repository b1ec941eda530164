"""Attention: the reference equation, and the fused kernels tested against it (A1–A3, A6, A8)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from heedful.kernels import dispatch
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.scores import Score, scaled_dot
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

    This is the reference the fused kernel is tested against. A query that may attend to nothing reads zeros, not NaN.
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
    """Attention weights: for each query a distribution over the keys (A9).

    Without `softmax` the scores themselves are the weights: *linear attention* (A2).
    """
    scores = score(query, key)
    queries, keys = scores.shape[-2:]
    mask = (mask or UNMASKED).resolve(queries, keys, scores.device)
    mask.check(*scores.shape)
    allowed = mask.dense(queries, keys, scores.device) if mask.causal else mask.allowed
    if mask.bias is not None:
        scores = scores + mask.bias.to(scores.dtype)
        allowed = mask.bias > -torch.inf  # a resolved bias is −inf wherever the mask forbids attending
    return masked_softmax(scores, allowed) if softmax else _fill_masked(scores, allowed, 0.0)


def masked_softmax(
    scores: Float[Tensor, "*axes queries keys"], allowed: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*axes queries keys"]:
    """exp(s_ij) / Σ_j exp(s_ij) over the allowed keys j; zeros where there are none (A6).

    The lowest finite number instead of −inf keeps a row without keys, and its gradient, finite.
    """
    weights = torch.softmax(_fill_masked(scores, allowed, torch.finfo(scores.dtype).min), dim=-1)
    return _fill_masked(weights, allowed, 0.0)


def _fill_masked(scores: Tensor, allowed: Tensor | None, number: float) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, number)


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
    mask = (mask or UNMASKED).resolve(query.shape[-2], key.shape[-2], query.device)
    mask.check(*query.shape[:-1], key.shape[-2])
    shared = query.shape[1] != key.shape[1]
    if query.is_cuda and not dropout and not shared:
        parts = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if dispatch.has_short_attention(*parts):
            return dispatch.short_attention(parts, mask, scale).transpose(1, 2)
    bias = mask.allowed if mask.bias is None else mask.bias.to(query.dtype)
    heads = scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=mask.causal, scale=scale, enable_gqa=shared
    )
    if query.is_cuda and mask.allowed is not None:
        # CUDA's half-precision kernels average *all* values for a query that may attend to nothing.
        heads = heads.masked_fill(~mask.allowed.any(-1, keepdim=True), 0.0)
    return heads
