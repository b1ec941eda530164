"""Kernel dispatch: the only place that decides whether a hand-written Triton kernel serves a call.

Each `has_*` function says whether a kernel supports a call; the kernels themselves are attributes of this module,
imported when first used. Every kernel needs CUDA tensors, so on a CPU the torch equivalent always serves and Triton,
which is absent there, is never imported.

    kernel                 torch equivalent                         serves
    short_attention        layers.attention.attention               ≤ 64 tokens, half precision, no dropout
    decode_attention       StaticCacheIndex.append, then attention  one new token a row over a static KV cache
    fused_decode_step      layers.block.Block.forward               the same, for at most 4 rows
    gelu_kernel            torch.nn.functional.gelu                 half precision, under torch.compile
    cross_entropy_inplace  objectives.cross_entropy_and_gradient    vocabularies of at least 1,024 tokens
    argmax_logprob         masked log-softmax, then max             greedy decoding
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.shapes import Float

if TYPE_CHECKING:
    from heedful.kernels.argmax_logprob import argmax_logprob as argmax_logprob
    from heedful.kernels.cross_entropy_kernel import cross_entropy_inplace as cross_entropy_inplace
    from heedful.kernels.decode_attention import decode_attention as decode_attention
    from heedful.kernels.fused_decode_step import fused_decode_step as fused_decode_step
    from heedful.kernels.gelu import gelu_kernel as gelu_kernel
    from heedful.kernels.short_attention import short_attention as short_attention
    from heedful.layers.multi_head_attention import SelfAttention

MODULES = {
    "argmax_logprob": "argmax_logprob",
    "cross_entropy_inplace": "cross_entropy_kernel",
    "decode_attention": "decode_attention",
    "fused_decode_step": "fused_decode_step",
    "gelu_kernel": "gelu",
    "short_attention": "short_attention",
}
HALF_PRECISION = (torch.bfloat16, torch.float16)
SHORT_ATTENTION_TOKENS = 64
SHORT_ATTENTION_HEAD_WIDTHS = (16, 32, 64, 128)
DECODE_ATTENTION_HEAD_WIDTHS = (16, 32, 64, 128, 256)
FUSED_DECODE_ROWS = 4
"""With more rows, a decode step is no longer bound by reading the weights."""
CROSS_ENTROPY_VOCABULARY = 1024
"""Below this the kernel does not repay its compilation, which takes seconds."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    kernel = globals()[name] = getattr(import_module(f"heedful.kernels.{MODULES[name]}"), name)
    return kernel


def has_short_attention(*parts: Float[Tensor, "batch _ _ _"]) -> bool:
    """Whether `short_attention` serves queries, keys and values of batch × tokens × heads × width."""
    width = parts[0].shape[3]
    return (
        parts[0].is_cuda
        and parts[0].dtype in HALF_PRECISION
        and width in SHORT_ATTENTION_HEAD_WIDTHS
        and all(part.shape[3] == width for part in parts)
        and max(part.shape[1] for part in parts) <= SHORT_ATTENTION_TOKENS
    )


def has_decode_attention(attention: SelfAttention, x: Tensor) -> bool:
    """Whether `decode_attention` serves a decode step of this attention."""
    one_width = attention.d_k == attention.d_v and attention.d_k in DECODE_ATTENTION_HEAD_WIDTHS
    return x.is_cuda and attention.fused and one_width


def has_fused_decode_step(x: Float[Tensor, "rows 1 width"], *, skip: bool) -> bool:
    """`skip`: whether the blocks have skip-connections, which the kernel always adds."""
    return x.is_cuda and len(x) <= FUSED_DECODE_ROWS and skip


def has_gelu(x: Tensor) -> bool:
    """Whether `gelu_kernel` serves these activations."""
    return x.is_cuda and x.dtype in HALF_PRECISION and torch.compiler.is_compiling()


def has_cross_entropy(x: Tensor, vocabulary: int) -> bool:
    """Whether `cross_entropy_inplace` serves logits of a vocabulary of this size."""
    return x.is_cuda and x.dtype != torch.float64 and vocabulary >= CROSS_ENTROPY_VOCABULARY


def has_argmax_logprob(logits: Tensor) -> bool:
    """Whether `argmax_logprob` serves these logits."""
    return logits.is_cuda
