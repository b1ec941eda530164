"""Activation functions, with fused forms for CUDA (B3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.kernels import dispatch
from heedful.shapes import Float

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu", "identity"]


def identity(x: Tensor) -> Tensor:
    """x: a network without nonlinearity, as an ablation (B7)."""
    return x


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), Φ the normal distribution        Hendrycks & Gimpel 2016"""
    return dispatch.gelu_kernel(x) if dispatch.has_gelu(x) else F.gelu(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "identity": identity,
}


def linear_relu(layer: nn.Linear, x: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes hidden"]:
    """max(0, x W + b) in one cuBLAS kernel, which keeps only its result for the backward pass."""
    inputs: tuple[Tensor, ...] = (x.flatten(0, -2), layer.weight, layer.bias)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        inputs = tuple(tensor.to(dtype) for tensor in inputs)
    activated: Tensor = _linear_relu(*inputs)
    return activated.view(*x.shape[:-1], -1)


# A custom op, because torch.compile would split it into two kernels.
@torch.library.custom_op(
    "heedful::linear_relu", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias) -> Tensor"
)
def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.T)


@_linear_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(len(x), len(weight))


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, output = ctx.saved_tensors
    grad = torch.where(output > 0, grad, 0.0)
    return grad @ weight, grad.T @ x, grad.sum(0)


_linear_relu.register_autograd(_backward, setup_context=_setup_context)
