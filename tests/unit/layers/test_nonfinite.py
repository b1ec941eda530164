"""NaN and infinities of masked keys and values (A6) affect neither the output nor the gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import heedful
from heedful.layers.attention import attention, attention_weights, fused_attention
from heedful.layers.masks import Mask, additive, causal, padding, subsets, window
from heedful.layers.scores import Bilinear

PATHS = [attention, fused_attention]
BAD = 3
"""The key and value that is not finite; queries 0 to 2 of the following masks may not attend to it."""
MASKS: dict[str, Mask] = {
    "causal": causal(),
    "subsets": subsets(torch.rand(6, 6) < 0.5) & causal(),
    "window": causal() & window(2),
    "bias": additive(torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)),
    "causal and a bias": causal() & Mask(bias=torch.randn(2, 1, 6, 6)),
}


def inputs(bad: float, *, of: str) -> list[Tensor]:
    query, key, value = (torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    if of == "key":
        key[:, :, BAD, 1] = bad
    else:
        value[:, :, BAD] = bad
    return [query.requires_grad_(), key.requires_grad_(), value.requires_grad_()]


def zeroed(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.nan_to_num(tensor.detach(), 0.0, 0.0, 0.0).requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("of", ["key", "value"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("path", PATHS)
def test_a_masked_nonfinite_key_or_value_affects_no_query_and_no_gradient(
    path: Callable[..., Tensor], name: str, bad: float, of: str
) -> None:
    tensors, mask = inputs(bad, of=of), MASKS[name]
    clean = zeroed(tensors)
    output, expected = path(*tensors, mask)[:, :, :BAD], path(*clean, mask)[:, :, :BAD]
    torch.testing.assert_close(output, expected, atol=0, rtol=0)
    gradients = torch.autograd.grad(output.square().sum(), tensors)
    for actual, wanted in zip(gradients, torch.autograd.grad(expected.square().sum(), clean), strict=True):
        torch.testing.assert_close(actual, wanted, atol=0, rtol=0)


@pytest.mark.parametrize("path", PATHS)
def test_padding_that_is_not_finite_changes_nothing(path: Callable[..., Tensor]) -> None:
    query, key, value = (torch.randn(2, 2, 6, 4) for _ in range(3))
    mask = padding(torch.tensor([6, 4]), 6)
    expected = path(query, key, value, mask)
    key[1, :, 4:], value[1, :, 4:] = torch.nan, torch.inf
    torch.testing.assert_close(path(query, key, value, mask), expected, atol=0, rtol=0)


@pytest.mark.parametrize("path", PATHS)
def test_an_allowed_value_that_is_not_finite_is_not_hidden(path: Callable[..., Tensor]) -> None:
    output = path(*inputs(torch.nan, of="value"), causal())
    assert output.isnan().all(-1).all(1).all(0).tolist() == [False] * BAD + [True] * (6 - BAD)


def test_key_heads_shared_by_query_heads_are_isolated_alike() -> None:
    query, key, value = torch.randn(2, 4, 6, 4), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)
    mask = causal() & Mask(bias=torch.randn(2, 4, 6, 6))
    key[0, 1, BAD] = torch.nan
    output = fused_attention(query, key, value, mask)
    copied = attention(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), mask)
    torch.testing.assert_close(output, copied, equal_nan=True)
    assert output[0, :2].isfinite().all()


def test_weights_and_learned_scores_are_isolated_too() -> None:
    query, key, value = inputs(torch.nan, of="key")
    weights = attention_weights(query, key, causal())
    assert weights[:, :, :BAD].isfinite().all()
    assert weights[:, :, BAD:].isnan().all()
    linear = attention(query, key, value, causal(), score=Bilinear(4, 4).double(), softmax=False)
    assert linear[:, :, :BAD].isfinite().all()


def test_a_padding_vector_that_is_not_finite_does_not_change_real_tokens() -> None:
    model = heedful.build("paper-base", vocabulary=9, width=16, heads=2, layers=2).eval()
    source, target = torch.randint(1, 9, (2, 6)), torch.randint(1, 9, (2, 3))
    source[1, 4:] = 0
    lengths = torch.tensor([6, 4])
    with torch.no_grad():
        expected = model(source, target, lengths)[..., 1:]
        model.table.weight[0] = torch.nan
        torch.testing.assert_close(model(source, target, lengths)[..., 1:], expected, atol=0, rtol=0)
