"""What makes a layer more than a product: activations, and on a GPU the forms of them it is quick at (B3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.shapes import Float

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu"]


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), Φ the normal distribution        Hendrycks & Gimpel 2016"""
    if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and torch.compiler.is_compiling():
        found: Tensor = Gelu.apply(x)  # type: ignore[no-untyped-call]
        return found
    return F.gelu(x)


class Gelu(torch.autograd.Function):
    """The same for a compiler to make one kernel of, each way: with erf it would compute for longer than it reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        below, _ = normal(x.float())
        found: Tensor = (x * below).to(x.dtype)
        return found

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        below, density = normal(x.float())
        found: Tensor = (slope * (below + x * density)).to(x.dtype)
        return found


def normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(x) and its density φ(x), both to 10⁻⁷: beyond |x| is φ(x) times a polynomial of 1 / (1 + p |x|)

    Abramowitz & Stegun 1964, 26.2.17. In the functions for which a GPU has an instruction: 2ˣ and 1 / √x.
    """
    density = torch.exp2(x * x * (-0.5 / math.log(2))) * (1 / math.sqrt(2 * math.pi))
    t = torch.rsqrt(1 + 0.2316419 * x.abs())
    t = t * t
    series = 0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    beyond = density * t * series
    return torch.where(x > 0, 1 - beyond, beyond), density


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def linear_relu(layer: nn.Linear, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes hidden"]:
    """max(0, x W + b) in one kernel on a GPU: what is below 0 is never written, and nothing is kept but the result."""
    parts: tuple[Tensor, ...] = (x.flatten(0, -2), layer.weight, layer.bias)
    if torch.is_autocast_enabled(x.device.type):
        kind = torch.get_autocast_dtype(x.device.type)
        parts = tuple(part.to(kind) for part in parts)
    found: Tensor = _linear_relu(*parts)
    return found.view(*x.shape[:-1], -1)


# A compiler takes it as it is: left to itself, it would make two kernels of it again.
@torch.library.custom_op(
    "heedful::linear_relu", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor"
)
def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.T)


@_linear_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(len(x), len(weight))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def _learn(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, found = ctx.saved_tensors
    slope = torch.where(found > 0, slope, 0.0)
    return slope @ weight, slope.T @ x, slope.sum(0)


_linear_relu.register_autograd(_learn, setup_context=_keep)
