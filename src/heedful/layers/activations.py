"""What makes a layer more than a product: activations, and on a GPU the forms of them it is quick at (B3)."""

from __future__ import annotations

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
        from heedful.kernels.gelu import gelu_kernel  # there is none without a GPU

        found: Tensor = gelu_kernel(x)
        return found
    return F.gelu(x)


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
