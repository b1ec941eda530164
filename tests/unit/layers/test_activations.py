"""The forms a GPU is quick at equal those that say what is meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.layers.activations import ACTIVATIONS, linear_relu
from heedful.layers.feed_forward import FeedForward

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gelu_under_torch_compile_equals_gelu() -> None:
    from heedful.kernels.gelu import gelu_kernel

    x = torch.linspace(-9, 9, 20_001, device="cuda").requires_grad_()
    slope = torch.linspace(-1, 1, 20_001, device="cuda")
    for ours, theirs in zip(both(gelu_kernel(x), [x], slope), both(F.gelu(x), [x], slope), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_linear_relu_equals_linear_then_relu(device: str) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 40).to(device), torch.randn(3, 5, 24, device=device, requires_grad=True)
    slope, learned = torch.randn(3, 5, 40, device=device), [x, layer.weight, layer.bias]
    exact = both(F.relu(layer(x)), learned, slope)
    for ours, theirs in zip(both(linear_relu(layer, x), learned, slope), exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = linear_relu(layer, x)
    assert found.dtype == torch.bfloat16
    for ours, theirs in zip(both(found, learned, slope.bfloat16()), exact, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=0.05, atol=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_compiled_feed_forward_has_the_gradients_of_the_eager_one_on_a_gpu(activation: str) -> None:
    torch.manual_seed(0)
    layer, x = FeedForward(64, 256, activation=activation).cuda(), torch.randn(4, 8, 64, device="cuda")
    slope, learned = torch.randn(4, 8, 64, device="cuda"), list(layer.parameters())
    inner = layer.inward(x)
    exact = both(layer.outward(layer.activation(inner)), learned, slope)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = torch.compile(layer)(x)
    for ours, theirs in zip(both(found, learned, slope.bfloat16()), exact, strict=True):
        assert (ours.float() - theirs).norm() < 0.02 * theirs.norm()


def both(found: torch.Tensor, learned: list[torch.Tensor], slope: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients."""
    return [found.detach(), *torch.autograd.grad(found, learned, slope)]
