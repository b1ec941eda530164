"""Score functions (A2): each against its formula, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.attention import attention, attention_weights
from heedful.layers.masks import causal
from heedful.layers.scores import Additive, Bilinear, dot, make_score, scaled_dot

AXES = [(), (3,), (2, 3)]
"""No leading axes, a batch, a batch of heads."""


def pair_by_pair(query: Tensor, key: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The table of score(q_i, k_j), one number at a time."""
    rows = [torch.stack([score(q, k) for k in key.unbind(-2)], -1) for q in query.unbind(-2)]
    return torch.stack(rows, -2)


@pytest.mark.parametrize("axes", AXES)
def test_dot_is_the_inner_product_of_each_pair(axes: tuple[int, ...]) -> None:
    query, key = torch.randn(*axes, 4, 5), torch.randn(*axes, 6, 5)
    torch.testing.assert_close(dot(query, key), pair_by_pair(query, key, lambda q, k: (q * k).sum(-1)))


@pytest.mark.parametrize("width", [1, 5, 64])
def test_scaled_dot_is_the_dot_product_over_the_root_of_the_width(width: int) -> None:
    query, key = torch.randn(2, 4, width), torch.randn(2, 6, width)
    torch.testing.assert_close(scaled_dot(query, key), dot(query, key) / math.sqrt(width))


@pytest.mark.parametrize("axes", AXES)
def test_bilinear_is_the_query_times_a_matrix_times_the_key(axes: tuple[int, ...]) -> None:
    score = Bilinear(5, 7).double()
    query, key = (torch.randn(*axes, n, width, dtype=torch.float64) for n, width in ((4, 5), (6, 7)))
    expected = pair_by_pair(query, key, lambda q, k: torch.einsum("...q,qk,...k->...", q, score.weight[0], k))
    torch.testing.assert_close(score(query, key), expected)


@pytest.mark.parametrize("axes", AXES)
def test_additive_is_a_small_network_on_the_pair(axes: tuple[int, ...]) -> None:
    score = Additive(5, 7).double()
    query, key = (torch.randn(*axes, n, width, dtype=torch.float64) for n, width in ((4, 5), (6, 7)))

    def judge(q: Tensor, k: Tensor) -> Tensor:
        return (torch.tanh(q @ score.query_weight[0] + k @ score.key_weight[0]) @ score.vector[0]).squeeze(-1)

    torch.testing.assert_close(score(query, key), pair_by_pair(query, key, judge))


@pytest.mark.parametrize("kind", [Bilinear, Additive])
def test_each_head_has_weights_of_its_own(kind: type[Bilinear | Additive]) -> None:
    """H heads at once give what H scores of one head give one after another."""
    together, alone = kind(4, 5, heads=3), kind(4, 5)
    query, key = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 7, 5)
    scores = together(query, key)
    for head in range(3):
        for name, weight in alone.named_parameters():
            weight.data.copy_(together.get_parameter(name)[head : head + 1])
        torch.testing.assert_close(scores[:, head], alone(query[:, head], key[:, head]))


@pytest.mark.parametrize("width", [4, 64, 256])
def test_scaling_keeps_the_variance_of_scores_at_1(width: int) -> None:
    """A3: a sum of d_k products of unit variance has variance d_k; dividing by √d_k brings it back to 1."""
    query, key = torch.randn(400, width), torch.randn(400, width)
    assert dot(query, key).var().item() == pytest.approx(width, rel=0.1)
    assert scaled_dot(query, key).var().item() == pytest.approx(1.0, rel=0.1)


def test_scaling_keeps_the_softmax_out_of_saturation() -> None:
    """A3: unscaled, one key takes nearly all the weight as d_k grows, and the gradient vanishes."""

    def steepness(score: Callable[[Tensor, Tensor], Tensor], width: int) -> float:
        weights = attention_weights(torch.randn(300, width), torch.randn(20, width), score=score)
        return float((weights * (1 - weights)).mean())  # the softmax's own derivative

    narrow, wide = steepness(scaled_dot, 4), steepness(scaled_dot, 1024)
    assert wide == pytest.approx(narrow, rel=0.2)
    assert steepness(dot, 1024) < wide / 10


@pytest.mark.parametrize("heads", [1, 3])
def test_a_bilinear_score_starts_at_unit_variance_like_the_scaled_dot(heads: int) -> None:
    scores = Bilinear(96, 160, heads=heads)(torch.randn(4, heads, 100, 96), torch.randn(4, heads, 100, 160))
    assert scores.var().item() == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "bilinear", "additive"])
def test_linear_attention_uses_scores_without_a_softmax(name: str) -> None:
    """A2: without the softmax the scores themselves are the weights."""
    score = make_score(name, 4, 4)
    query, key, value = (torch.randn(2, 5, 4) for _ in range(3))
    expected = score(query, key).tril() @ value
    torch.testing.assert_close(attention(query, key, value, causal(), score=score, softmax=False), expected)


@pytest.mark.parametrize("name", ["dot", "scaled_dot"])
def test_products_need_queries_and_keys_of_one_width(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' needs queries and keys of one width, got 4 and 5; use 'bilinear'"):
        make_score(name, 4, 5)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_learned_scores_take_queries_and_keys_of_any_widths(name: str) -> None:
    scores = make_score(name, 4, 9, heads=2)(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 9))
    assert scores.shape == (1, 2, 3, 5)


@pytest.mark.parametrize("name", ["query_width", "key_width", "heads"])
@pytest.mark.parametrize("kind", [Bilinear, Additive])
def test_zero_sizes_are_refused_by_name(kind: type[Bilinear | Additive], name: str) -> None:
    sizes = {"query_width": 4, "key_width": 4, "heads": 2, name: 0}
    with pytest.raises(UsageError, match=f"{name} must be positive, got 0"):
        kind(**sizes)


@pytest.mark.usefixtures("types_unchecked")
def test_a_misspelled_score_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown score 'aditive'; did you mean 'additive'"):
        make_score("aditive", 4, 4)
