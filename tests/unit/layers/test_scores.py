"""Score functions (A2): each against its formula, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.attention import attention, attention_weights
from heedful.layers.masks import causal
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.scores import Additive, Bilinear, DistanceScore, PositionScore, dot, make_score, scaled_dot, uniform
from heedful.layers.taps import record

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


@pytest.mark.parametrize("axes", AXES)
def test_uniform_scores_take_the_mean_of_the_allowed_values(axes: tuple[int, ...]) -> None:
    query, key, value = torch.randn(*axes, 6, 0), torch.randn(*axes, 6, 0), torch.randn(*axes, 6, 4)
    means = value.cumsum(-2) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(attention(query, key, value, causal(), score=uniform), means)


@pytest.mark.parametrize("kind", [PositionScore, DistanceScore])
def test_a_score_by_position_is_a_number_for_each_pair(kind: type[PositionScore]) -> None:
    table = kind(6, heads=2)
    scores = table(torch.tensor([[3, 4], [0, 5]]), 6)
    assert scores.shape == (2, 2, 2, 6)
    for text, query, i in ((0, 0, 3), (0, 1, 4), (1, 0, 0), (1, 1, 5)):
        for j in range(6):
            number = table.weight[:, i, j] if kind is PositionScore else table.weight[:, i - j + 5]
            assert torch.equal(scores[text, :, query, j], number)


@pytest.mark.parametrize("name", ["uniform", "position", "distance"])
def test_attention_by_position_does_not_depend_on_the_tokens(name: str) -> None:
    layer = SelfAttention(8, 2, score=name, max_length=6)
    assert layer.query_key_value.out_features == 8  # values only
    with record(layer, "weights") as recorded:
        layer(torch.randn(1, 5, 8)), layer(torch.randn(1, 5, 8))
    first, second = recorded.history["weights"]
    assert torch.equal(first, second)
    torch.testing.assert_close(first.sum(-1), torch.ones(1, 2, 5))


def test_a_feed_forward_network_over_tokens_has_a_weight_for_each_pair_of_positions() -> None:
    """y_i = W_o max(0, Σ_j w_ij W_v x_j): attention by position without the softmax, with an activation."""
    layer = SelfAttention(8, 2, score="position", softmax=False, head_activation="relu", max_length=5, bias=False)
    x = torch.randn(1, 5, 8)
    values = layer.query_key_value(x).view(5, 2, 4)
    mixed = torch.einsum("hij,jhv->ihv", layer.score.weight, values).relu()  # type: ignore[union-attr]
    torch.testing.assert_close(layer(x)[0], layer.output(mixed.flatten(1)))


def test_queries_of_another_sequence_have_positions_of_their_own() -> None:
    layer = CrossAttention(8, 2, score="position", max_length=6)
    memory = torch.randn(1, 4, 8)
    whole = layer(torch.randn(1, 6, 8), memory)
    last = layer(torch.randn(1, 1, 8), layer.project(memory), positions=torch.tensor([[5]]))
    torch.testing.assert_close(last[:, 0], whole[:, 5])


@pytest.mark.parametrize("name", ["position", "distance"])
def test_a_text_longer_than_the_table_of_scores_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a text of 7 tokens is longer than the table of position scores, 6"):
        SelfAttention(8, 2, score=name, max_length=6)(torch.randn(1, 7, 8))
    with pytest.raises(UsageError, match="say how long with max_length"):
        make_score(name, 4, 4)
    with pytest.raises(UsageError, match="leave score_scale out"):
        make_score(name, 4, 4, max_length=6, scale=2.0)


@pytest.mark.parametrize(("scale", "factor"), [(3.0, 3.0), ("1/d_k", 0.25), ("learned", 0.5), (None, 0.5)])
def test_a_scale_takes_the_place_of_the_root_of_the_width(scale: Any, factor: float) -> None:
    score = make_score("scaled_dot", 4, 4, scale=scale)
    query, key = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    torch.testing.assert_close(score(query, key), factor * dot(query, key))
    layer = SelfAttention(8, 2, score_scale=scale)  # d_k = 4
    x = torch.randn(1, 5, 8)
    with record(layer, "queries", "keys", "scores") as recorded:
        observed = layer(x)
    torch.testing.assert_close(recorded["scores"], factor * dot(recorded["queries"], recorded["keys"]))
    torch.testing.assert_close(layer(x), observed)


def test_a_learned_scale_is_one_number_a_head() -> None:
    layer = SelfAttention(8, 2, score_scale="learned")
    layer(torch.randn(1, 5, 8)).square().sum().backward()
    factor = layer.get_parameter("score.factor")
    assert factor.shape == (2, 1, 1)
    assert factor.grad is not None
    assert factor.grad.abs().min() > 0


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
