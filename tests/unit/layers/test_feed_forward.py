"""The position-wise feed-forward network (B3)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.activations import ACTIVATIONS
from heedful.layers.feed_forward import FeedForward
from heedful.layers.taps import record

# Each activation as its paper writes it, with Φ(x) = (1 + erf(x/√2)) / 2.
FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "identity": lambda x: x,
}


def test_every_activation_is_tested_against_its_formula() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_network_is_its_equation(name: str) -> None:
    """act(x W_1 + b_1) W_2 + b_2; for ReLU max(0, x W_1 + b_1) W_2 + b_2."""
    layer = FeedForward(6, 10, activation=name).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    hidden = FORMULAS[name](x @ layer.inward.weight.T + layer.inward.bias)
    torch.testing.assert_close(layer(x), hidden @ layer.outward.weight.T + layer.outward.bias)


@pytest.mark.parametrize("name", FORMULAS)
def test_gated_feed_forward_multiplies_the_activated_gate_with_the_other_half(name: str) -> None:
    """(act(x W_g) ⊙ x W_1) W_2."""
    layer = FeedForward(6, 10, activation=name, gated=True, bias=False).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gate, first = layer.inward.weight[:10], layer.inward.weight[10:]
    hidden = FORMULAS[name](x @ gate.T) * (x @ first.T)
    torch.testing.assert_close(layer(x), hidden @ layer.outward.weight.T)


def test_exact_and_tanh_gelu_are_near_but_not_the_same() -> None:
    x = torch.linspace(-4, 4, 100, dtype=torch.float64)
    apart = (ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_tanh"](x)).abs().max()
    assert 1e-5 < apart < 1e-2


@pytest.mark.parametrize("gated", [True, False])
def test_feed_forward_is_position_wise(gated: bool) -> None:
    layer = FeedForward(6, 10, gated=gated).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    alone = torch.stack([layer(x[:, i : i + 1])[:, 0] for i in range(5)], dim=1)
    torch.testing.assert_close(layer(x), alone)
    order = torch.randperm(5)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_taps_record_the_hidden_layer_and_the_output() -> None:
    layer = FeedForward(6, 10)
    with record(layer, "*") as recorded:
        output = layer(torch.randn(2, 3, 6))
    assert recorded["hidden"].shape == (2, 3, 10)
    assert (recorded["hidden"] >= 0).all()
    assert torch.equal(recorded["output"], output)


def test_biases_can_be_left_out() -> None:
    assert [name for name, _ in FeedForward(4, 8, bias=False).named_parameters()] == ["inward.weight", "outward.weight"]


@pytest.mark.parametrize(("sizes", "message"), [((0, 8), "width"), ((4, 0), "feed_forward"), ((4, -8), "feed_forward")])
def test_sizes_must_be_positive(sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(UsageError, match=f"{message} must be positive"):
        FeedForward(*sizes)


@pytest.mark.usefixtures("types_unchecked")
def test_a_misspelled_activation_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown activation 'relo'; did you mean 'relu'"):
        FeedForward(4, 8, activation="relo")
