"""x Φ(x) and its slope, a kernel each, for compiled training on a GPU.

Left to itself, a compiler would work x Φ(x) out again on the way back, which writes what could have been kept; and erf
computes for longer than a GPU takes to read. It equals `F.gelu`, which says what it means; a test compares them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@torch.library.custom_op("heedful::gelu", mutates_args=(), schema="(Tensor x) -> Tensor")
def gelu_kernel(x: Tensor) -> Tensor:
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    _forward[(triton.cdiv(x.numel(), BLOCK),)](x.contiguous(), found, x.numel(), block=BLOCK)
    return found


@torch.library.custom_op("heedful::gelu_slope", mutates_args=(), schema="(Tensor x, Tensor slope) -> Tensor")
def _slope(x: Tensor, slope: Tensor) -> Tensor:
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    _backward[(triton.cdiv(x.numel(), BLOCK),)](x.contiguous(), slope.contiguous(), found, x.numel(), block=BLOCK)
    return found


@gelu_kernel.register_fake
@_slope.register_fake
def _(x: Tensor, *slope: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _learn(ctx: Any, slope: Tensor) -> Tensor:
    found: Tensor = _slope(*ctx.saved_tensors, slope)
    return found


gelu_kernel.register_autograd(_learn, setup_context=_keep)


# Φ(x) and its density φ(x), both to 10⁻⁷: beyond |x| is φ(x) times a polynomial of 1 / (1 + p |x|), Abramowitz & Stegun
# 1964, 26.2.17. In the functions for which a GPU has an instruction: 2ˣ and 1 / √x. Without annotations: the compiler
# would read them as code.
@triton.jit
def _normal(x):
    density = tl.exp2(x * x * -0.7213475204444817) * 0.3989422804014327
    t = tl.rsqrt(1 + 0.2316419 * tl.abs(x))
    t = t * t
    series = 0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    beyond = density * t * series
    return tl.where(x > 0, 1 - beyond, beyond), density


@triton.jit
def _forward(x, found, size, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = tl.load(x + at, at < size).to(tl.float32)
    below, _ = _normal(here)
    tl.store(found + at, (here * below).to(found.dtype.element_ty), at < size)


@triton.jit
def _backward(x, slope, found, size, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = tl.load(x + at, at < size).to(tl.float32)
    below, density = _normal(here)
    learned = tl.load(slope + at, at < size).to(tl.float32) * (below + here * density)
    tl.store(found + at, learned.to(found.dtype.element_ty), at < size)
