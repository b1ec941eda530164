"""The skip-connection, pre-norm and post-norm (B1, B2)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.layers.norms import layer_norm, rms_norm
from heedful.layers.residual import Residual
from heedful.layers.taps import record


def sublayer(x: Tensor) -> Tensor:
    return torch.sin(3 * x) + 1


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 6, dtype=torch.float64)


def normed(residual: Residual, x: Tensor) -> Tensor:
    return layer_norm(x, residual.norm.weight, residual.norm.bias)


def drawn(residual: Residual) -> Residual:
    """A norm whose gain and bias are not 1 and 0."""
    for weight in residual.parameters():
        torch.nn.init.normal_(weight)
    return residual.double()


def test_post_norm_is_the_norm_of_the_sum(x: Tensor) -> None:
    """LN(x + f(x))."""
    residual = drawn(Residual(6, order="post"))
    torch.testing.assert_close(residual(x, sublayer), normed(residual, x + sublayer(x)))


def test_pre_norm_is_the_input_plus_the_sublayer_of_the_norm(x: Tensor) -> None:
    """x + f(LN(x)): the stream itself is never normalized."""
    residual = drawn(Residual(6, order="pre"))
    torch.testing.assert_close(residual(x, sublayer), x + sublayer(normed(residual, x)))


def test_without_the_skip_connection_only_the_sublayer_remains(x: Tensor) -> None:
    post, pre = (drawn(Residual(6, order=order, skip=False)) for order in ("post", "pre"))
    torch.testing.assert_close(post(x, sublayer), normed(post, sublayer(x)))
    torch.testing.assert_close(pre(x, sublayer), sublayer(normed(pre, x)))


def test_a_zero_sublayer_leaves_a_pre_norm_stream_unchanged(x: Tensor) -> None:
    assert torch.equal(Residual(6, order="pre").double()(x, torch.zeros_like), x)


def test_the_norm_inside_can_be_rms(x: Tensor) -> None:
    residual = drawn(Residual(6, norm="rms", epsilon=0.1))
    torch.testing.assert_close(residual(x, sublayer), rms_norm(x + sublayer(x), residual.norm.weight, 0.1))


def test_dropout_applies_to_the_sublayer_not_to_the_residual_stream() -> None:
    """Paper 5.4: in training each feature of f(x) is 0 or doubled at rate ½, and x passes unchanged."""
    residual = Residual(64, order="pre", dropout=0.5)
    x = torch.randn(2, 3, 64)
    added = residual(x, torch.ones_like) - x
    assert set(added.round(decimals=4).unique().tolist()) == {0.0, 2.0}


def test_dropout_is_off_in_evaluation() -> None:
    residual = Residual(6, dropout=0.5).eval()
    x = torch.randn(2, 3, 6)
    assert torch.equal(residual(x, sublayer), residual(x, sublayer))
    torch.testing.assert_close(residual(x, sublayer), normed(residual, x + sublayer(x)))


@pytest.mark.parametrize("order", ["pre", "post"])
def test_taps_record_the_residual_stream_before_and_after(order: str, x: Tensor) -> None:
    residual = Residual(6, order=order).double()
    with record(torch.nn.ModuleList([residual]), "0.residual", "0.skip") as recorded:
        output = residual(x, sublayer)
    assert torch.equal(recorded["0.skip"], x)
    assert torch.equal(recorded["0.residual"], output)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_skip_carries_gradient_past_a_dead_sublayer(order: str) -> None:
    """B1: even where f's gradient is 0 the input has a gradient; without the skip it has none."""
    x = torch.randn(2, 3, 6, requires_grad=True)
    for skip in (True, False):
        output = Residual(6, order=order, skip=skip)(x, lambda x: x.detach() ** 2)
        reached = output.requires_grad and torch.autograd.grad(output[..., 0].sum(), x, allow_unused=True)[0]
        assert isinstance(reached, Tensor) == skip


@pytest.mark.parametrize("order", ["pre", "post"])
def test_under_autocast_the_residual_stream_has_the_sublayer_s_dtype(order: str) -> None:
    residual, linear = Residual(6, order=order), torch.nn.Linear(6, 6)  # type: ignore[arg-type]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert residual(torch.randn(2, 3, 6), linear).dtype == torch.bfloat16
    assert residual(torch.randn(2, 3, 6), linear).dtype == torch.float32
