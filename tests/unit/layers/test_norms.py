"""Norms (B2): PyTorch's fused forms against the written-out equations, and those against plain sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from heedful.errors import UsageError
from heedful.layers.norms import layer_norm, make_norm, rms_norm


def drawn(norm: nn.Module) -> nn.Module:
    """With gains and biases that are not 1 and 0."""
    for weight in norm.parameters():
        nn.init.normal_(weight)
    return norm.double()


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.5])
def test_layer_norm_is_its_equation_feature_by_feature(epsilon: float) -> None:
    """γ (x − μ) / √(σ² + ε) + β, with the variance over n, not n − 1."""
    x, gain, bias = (torch.randn(4, dtype=torch.float64) for _ in range(3))
    mean = sum(x.tolist()) / 4
    variance = sum((feature - mean) ** 2 for feature in x.tolist()) / 4
    expected = [g * (f - mean) / math.sqrt(variance + epsilon) + b for f, g, b in zip(x, gain, bias, strict=True)]
    torch.testing.assert_close(layer_norm(x, gain, bias, epsilon), torch.stack(expected))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.5])
def test_rms_norm_is_its_equation_feature_by_feature(epsilon: float) -> None:
    """γ x / √(mean(x²) + ε): no centring, no bias."""
    x, gain = (torch.randn(4, dtype=torch.float64) for _ in range(2))
    root = math.sqrt(sum(feature**2 for feature in x.tolist()) / 4 + epsilon)
    torch.testing.assert_close(rms_norm(x, gain, epsilon), gain * x / root)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.5])
def test_the_fused_layer_norm_equals_the_equation(epsilon: float) -> None:
    norm = drawn(make_norm("layer", 6, epsilon=epsilon))
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    torch.testing.assert_close(norm(x), layer_norm(x, norm.weight, norm.bias, epsilon))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.5])
def test_the_fused_rms_norm_equals_the_equation(epsilon: float) -> None:
    norm = drawn(make_norm("rms", 6, epsilon=epsilon))
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    torch.testing.assert_close(norm(x), rms_norm(x, norm.weight, epsilon))


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_epsilon_is_inside_the_square_root(name: str) -> None:
    """For x far below √ε the result is x/√ε; outside the root it would be near x/(|x| + ε)."""
    x = torch.tensor([[1e-6, -1e-6]], dtype=torch.float64)
    result = make_norm(name, 2, epsilon=1e-4).double()(x)
    torch.testing.assert_close(result, x / 1e-2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_tokens_are_normalized_independently(name: str) -> None:
    norm, x = make_norm(name, 6), torch.randn(2, 3, 6)
    changed = x.clone()
    changed[0, 1] += 5
    same = torch.ones(2, 3, dtype=torch.bool)
    same[0, 1] = False
    assert torch.equal(norm(x)[same], norm(changed)[same])


def test_a_layer_norm_has_mean_0_and_variance_1_and_an_rms_norm_mean_square_1() -> None:
    x = 3 * torch.randn(2, 3, 64, dtype=torch.float64) + 7
    centered, scaled = make_norm("layer", 64).double()(x), make_norm("rms", 64).double()(x)
    torch.testing.assert_close(centered.mean(-1), torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(centered.var(-1, correction=0), torch.ones(2, 3, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.square().mean(-1), torch.ones(2, 3, dtype=torch.float64), atol=1e-4, rtol=0)
    assert scaled.mean() > 0.5, "not centered"


def test_a_constant_token_normalizes_to_the_bias() -> None:
    norm = make_norm("layer", 4)
    nn.init.normal_(norm.bias)
    torch.testing.assert_close(norm(torch.full((1, 4), 9.0)), norm.bias[None])


def test_the_bias_can_be_left_out() -> None:
    assert [name for name, _ in make_norm("layer", 4, bias=False).named_parameters()] == ["weight"]
    assert [name for name, _ in make_norm("rms", 4).named_parameters()] == ["weight"]


@pytest.mark.usefixtures("types_unchecked")
def test_a_misspelled_norm_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown norm 'layr'; did you mean 'layer'"):
        make_norm("layr", 4)


def test_sizes_must_be_positive() -> None:
    with pytest.raises(UsageError, match="width must be positive, got 0"):
        make_norm("layer", 0)
    with pytest.raises(UsageError, match="epsilon must be positive, got 0"):
        make_norm("rms", 4, epsilon=0.0)
