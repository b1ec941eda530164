"""Fused activations equal their plain forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.layers.activations import ACTIVATIONS, linear_relu
from heedful.layers.feed_forward import FeedForward

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_linear_relu_equals_linear_then_relu(device: str) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 40).to(device), torch.randn(3, 5, 24, device=device, requires_grad=True)
    grad, inputs = torch.randn(3, 5, 40, device=device), [x, layer.weight, layer.bias]
    exact = output_and_gradients(F.relu(layer(x)), inputs, grad)
    for actual, expected in zip(output_and_gradients(linear_relu(layer, x), inputs, grad), exact, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    with torch.autocast(device, dtype=torch.bfloat16):
        output = linear_relu(layer, x)
    assert output.dtype == torch.bfloat16
    for actual, expected in zip(output_and_gradients(output, inputs, grad.bfloat16()), exact, strict=True):
        torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_compiled_feed_forward_has_the_gradients_of_the_eager_one_on_a_gpu(activation: str) -> None:
    torch.manual_seed(0)
    layer, x = FeedForward(64, 256, activation=activation).cuda(), torch.randn(4, 8, 64, device="cuda")
    grad, inputs = torch.randn(4, 8, 64, device="cuda"), list(layer.parameters())
    inner = layer.inward(x)
    exact = output_and_gradients(layer.outward(layer.activation(inner)), inputs, grad)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = torch.compile(layer)(x)
    for actual, expected in zip(output_and_gradients(output, inputs, grad.bfloat16()), exact, strict=True):
        assert (actual.float() - expected).norm() < 0.02 * expected.norm()


def output_and_gradients(output: torch.Tensor, inputs: list[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """The output, and its gradients by the inputs."""
    return [output.detach(), *torch.autograd.grad(output, inputs, grad)]
