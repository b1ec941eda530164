"""Multi-head self-attention and cross-attention (A4, A5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.attention import (
    attention,
)
from heedful.layers.masks import Mask, causal, padding
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention, even_split
from heedful.layers.scores import Additive, Bilinear, dot, scaled_dot
from heedful.layers.taps import record

examples = settings(deadline=None, max_examples=12, derandomize=True)


def by_hand(layer: SelfAttention | CrossAttention, x: Tensor, memory: Tensor, mask: Mask | None = None) -> Tensor:
    """Concat(h_1 … h_H) W_o + b_o with h_h = A(X W_q, M W_k, M W_v), head after head (A4, A5)."""
    if isinstance(layer, SelfAttention):
        q, k, v = layer.query_key_value(x).split(layer.sizes, -1)
    else:
        q, (k, v) = layer.query(x), layer.key_value(memory).split(layer.sizes, -1)
    heads = []
    for h in range(layer.heads):
        g = h * layer.groups // layer.heads  # the key/value head that query head h shares
        q_h, k_g = q[..., h * layer.d_k :][..., : layer.d_k], k[..., g * layer.d_k :][..., : layer.d_k]
        heads.append(attention(q_h, k_g, v[..., g * layer.d_v :][..., : layer.d_v], mask))
    return torch.cat(heads, -1) @ layer.output.weight.T + layer.output.bias


SHAPES: list[dict[str, Any]] = [
    {"heads": 4},
    {"heads": 1},
    {"heads": 3, "head_width": 5},
    {"heads": 2, "head_width": 3, "value_width": 7},
    {"heads": 6, "head_width": 2, "key_value_heads": 2},
    {"heads": 4, "key_value_heads": 1, "value_width": 3},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_self_attention_is_the_equation_head_by_head(shape: dict[str, Any]) -> None:
    layer = SelfAttention(8, **shape).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x, causal()), by_hand(layer, x, x, causal()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 9])
def test_cross_attention_attends_to_a_sequence_of_another_length(shape: dict[str, Any], tokens: int) -> None:
    layer = CrossAttention(8, **shape).double()
    x, memory = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, tokens, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x, memory), by_hand(layer, x, memory))
    torch.testing.assert_close(layer(x, layer.project(memory)), by_hand(layer, x, memory))


def test_cross_attention_over_an_empty_source_gives_the_output_bias_alone() -> None:
    layer = CrossAttention(8, 2)
    output = layer(torch.randn(2, 3, 8), torch.randn(2, 0, 8))
    torch.testing.assert_close(output, layer.output.bias.expand(2, 3, 8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_is_the_sum_of_head_contributions(shape: dict[str, Any]) -> None:
    """A5: Concat(h_1 … h_H) W_o = Σ_h h_h W_h."""
    layer = SelfAttention(8, **shape).double()
    with record(layer, "heads") as recorded:
        output = layer(torch.randn(2, 5, 8, dtype=torch.float64))
    contributions = layer.contributions(recorded["heads"])
    assert contributions.shape == (2, layer.heads, 5, 8)
    torch.testing.assert_close(contributions.sum(1) + layer.output.bias, output)
    last = recorded["heads"][:, -1] @ layer.output.weight[:, -layer.d_v :].T
    torch.testing.assert_close(contributions[:, -1], last)


def test_a_layer_with_shared_heads_equals_one_with_the_weights_copied() -> None:
    shared, full = (SelfAttention(8, 4, key_value_heads=groups).double() for groups in (2, 4))
    parts = {
        name: [wide.view(-1, 2, *wide.shape[1:]) for wide in weight.split(shared.sizes)]
        for name, weight in shared.query_key_value.named_parameters()
    }
    for name, (q, k, v) in parts.items():  # heads of d_k = 2: one row in the view is one head
        copied = torch.cat([q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)]).flatten(0, 1)
        getattr(full.query_key_value, name).data.copy_(copied)
    full.output.load_state_dict(shared.output.state_dict())
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(shared(x, causal()), full(x, causal()))


def test_head_widths_are_independent_of_the_model_width() -> None:
    """H·d_k = d is usual, not required."""
    layer = SelfAttention(8, 3, head_width=5, value_width=7)
    assert layer.query_key_value.weight.shape == (3 * 5 + 3 * 5 + 3 * 7, 8)
    assert layer.output.weight.shape == (8, 3 * 7)


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "bilinear", "additive"])
def test_every_score_works_in_a_layer_with_and_without_the_softmax(score: str, softmax: bool, groups: int) -> None:
    layer = SelfAttention(8, 4, key_value_heads=groups, score=score, softmax=softmax).double()
    mask = causal() & padding(torch.tensor([4, 2]), 4)
    with record(layer, "queries", "keys", "values", "heads") as recorded:
        layer(torch.randn(2, 4, 8, dtype=torch.float64), mask)
    function = {"dot": dot, "scaled_dot": scaled_dot}.get(score, layer.score)
    assert isinstance(function, Additive | Bilinear) == (score in ("bilinear", "additive"))
    key, value = (recorded[point].repeat_interleave(4 // groups, 1) for point in ("keys", "values"))
    expected = attention(recorded["queries"], key, value, mask, score=function, softmax=softmax)
    torch.testing.assert_close(recorded["heads"], expected)


@pytest.mark.parametrize("score", ["bilinear", "additive"])
def test_scores_with_weights_have_their_own_for_each_head_even_when_keys_are_shared(score: str) -> None:
    layer = SelfAttention(8, 4, key_value_heads=2, score=score)
    assert isinstance(layer.score, nn.Module)
    assert {weight.shape[0] for weight in layer.score.parameters()} == {4}
    layer(torch.randn(1, 3, 8)).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in layer.score.parameters())


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_attention_dropout_acts_while_training_only(score: str) -> None:
    layer = SelfAttention(8, 2, score=score, dropout=0.5)
    plain = SelfAttention(8, 2, score=score)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 8)
    assert not torch.allclose(layer(x), layer(x))
    torch.testing.assert_close(layer.eval()(x), plain(x))


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_attention_dropout_zeroes_weights_and_rescales_the_others(score: str) -> None:
    """With all values 1 a head reads Σ_j α_ij: 0 or twice the kept weights when half are dropped."""
    layer = SelfAttention(4, 1, score=score, dropout=0.5).double()
    layer.query_key_value.weight.data[8:] = 0.0
    layer.query_key_value.bias.data[8:] = 1.0
    x = torch.randn(1, 1, 4, dtype=torch.float64).expand(1, 2, 4)  # equal tokens: weights ½ and ½
    with record(layer, "heads") as recorded:
        for _ in range(40):
            layer(x)
    sums = {round(float(total), 9) for heads in recorded.history["heads"] for total in heads.detach().flatten()}
    assert sums == {0.0, 1.0, 2.0}


def test_a_layer_without_bias_has_none_anywhere() -> None:
    for layer in (SelfAttention(8, 2, bias=False), CrossAttention(8, 2, bias=False)):
        assert not [name for name, _ in layer.named_parameters() if name.endswith("bias")]


@pytest.mark.parametrize(
    ("width", "heads", "advice"),
    [
        (10, 4, "use width 8 or 12, or 2 or 5 heads"),
        (2, 3, "use width 3, or 2 heads"),
        (512, 7, "use width 511 or 518, or 4 or 8 heads"),
    ],
)
def test_a_width_not_divisible_by_its_heads_suggests_divisible_ones(width: int, heads: int, advice: str) -> None:
    with pytest.raises(UsageError, match=f"width {width} is not divisible by {heads} heads; {advice}"):
        SelfAttention(width, heads)


@examples
@given(width=st.integers(1, 60), heads=st.integers(1, 60))
def test_even_split_divides_or_suggests_divisible_sizes(width: int, heads: int) -> None:
    if width % heads == 0:
        assert even_split(width, heads) * heads == width
    else:
        with pytest.raises(UsageError, match="or set head_width yourself"):
            even_split(width, heads)


def test_key_value_heads_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(UsageError, match="6 heads cannot share 4 key/value heads evenly; use one of 1, 2, 3, 6"):
        SelfAttention(12, 6, key_value_heads=4)


@pytest.mark.parametrize("name", ["width", "heads", "head_width", "value_width", "key_value_heads"])
@pytest.mark.parametrize("size", [0, -2])
def test_zero_and_negative_sizes_are_refused_by_name(name: str, size: int) -> None:
    sizes = {"width": 8, "heads": 2, name: size}
    with pytest.raises(UsageError, match=f"^{name} must be positive, got {size}$"):
        SelfAttention(**sizes)
