"""Attention (A1–A6, A8, A9): reference equation, fused path, and multi-head layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.errors import UsageError
from heedful.layers.attention import (
    CrossAttention,
    SelfAttention,
    attention,
    attention_weights,
    even_split,
    fused_attention,
)
from heedful.layers.masks import Mask, additive, causal, documents, padding, subsets, window
from heedful.layers.positions import alibi
from heedful.layers.scores import Additive, Bilinear, dot, scaled_dot
from heedful.layers.taps import record

PATHS = [attention, fused_attention]
small = st.integers(1, 5)
examples = settings(deadline=None, max_examples=12, derandomize=True)

# Each piece of a mask, drawn at random for a batch of attention of the given size.
PIECES: dict[str, Callable[[int, int, int, int], Mask]] = {
    "causal": lambda b, h, q, k: causal(),
    "padding": lambda b, h, q, k: padding(torch.randint(0, k + 1, (b,)), k),
    "window": lambda b, h, q, k: window(int(torch.randint(1, 4, ()))),
    "documents": lambda b, h, q, k: documents(torch.randint(0, 2, (b, k))),
    "subsets": lambda b, h, q, k: subsets(torch.rand(b, 1, q, k) < 0.6),
    "subsets by head": lambda b, h, q, k: subsets(torch.rand(h, q, k) < 0.6),
    "additive": lambda b, h, q, k: additive(torch.zeros(q, k).masked_fill(torch.rand(q, k) < 0.4, -torch.inf)),
    "bias": lambda b, h, q, k: Mask(bias=torch.randn(b, h, q, k)),
    "alibi": lambda b, h, q, k: Mask(bias=alibi(torch.arange(k - q, k)[None], k, h)),
}
JOINS = [
    (),
    *((name,) for name in PIECES),
    ("causal", "padding"),
    ("causal", "documents"),
    ("causal", "window", "alibi"),
    ("additive", "subsets"),
    ("padding", "alibi", "bias"),
    ("causal", "padding", "window", "subsets", "additive", "alibi"),
]


def draw_attention(seed: int, sizes: list[int], joined: tuple[str, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Random queries, keys, values and mask; documents are packed rows, so there n_q = n_k."""
    torch.manual_seed(seed)
    batch, heads, queries, keys, d_k, d_v = sizes
    queries = keys if "documents" in joined else queries
    mask = Mask()
    for name in joined:
        mask = mask & PIECES[name](batch, heads, queries, keys)
    shapes = (batch, heads, queries, d_k), (batch, heads, keys, d_k), (batch, heads, keys, d_v)
    return *(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes), mask


def output_and_gradients(
    path: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, mask: Mask | None
) -> list[Tensor]:
    output = path(query, key, value, mask)
    return [output, *torch.autograd.grad(output.square().sum(), (query, key, value))]


def assert_all_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


@pytest.mark.parametrize("joined", JOINS, ids=" & ".join)
@examples
@given(seed=st.integers(0, 9999), sizes=st.lists(small, min_size=6, max_size=6))
def test_the_fused_kernel_equals_the_equation_and_so_do_its_gradients(
    joined: tuple[str, ...], seed: int, sizes: list[int]
) -> None:
    case = draw_attention(seed, sizes, joined, torch.float64)
    assert_all_close(output_and_gradients(fused_attention, *case), output_and_gradients(attention, *case), 1e-9)


@pytest.mark.parametrize("joined", JOINS, ids=" & ".join)
def test_the_fused_kernel_equals_the_equation_in_single_precision(joined: tuple[str, ...]) -> None:
    case = draw_attention(0, [2, 3, 5, 7, 4, 4], joined, torch.float32)
    assert_all_close(output_and_gradients(fused_attention, *case), output_and_gradients(attention, *case), 1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("joined", JOINS, ids=" & ".join)
def test_half_precision_stays_near_the_exact_result(path: Callable[..., Tensor], joined: tuple[str, ...]) -> None:
    """Biases are computed in float32; they must not change the dtype of the scores."""
    *tensors, mask = draw_attention(0, [2, 3, 5, 7, 4, 4], joined, torch.bfloat16)
    output = path(*tensors, mask)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), attention(*(x.double() for x in tensors), mask), atol=0.05, rtol=0)


@examples
@given(
    seed=st.integers(0, 9999),
    groups=st.integers(1, 3),
    sharing=st.integers(1, 3),
    joined=st.sampled_from(JOINS),
)
def test_shared_key_and_value_heads_equal_explicit_copies(
    seed: int, groups: int, sharing: int, joined: tuple[str, ...]
) -> None:
    query, *_, mask = draw_attention(seed, [2, groups * sharing, 4, 5, 3, 2], joined, torch.float64)
    key, value = (torch.randn(2, groups, 5, d, dtype=torch.float64, requires_grad=True) for d in (3, 2))

    def copied(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return attention(query, key.repeat_interleave(sharing, 1), value.repeat_interleave(sharing, 1), mask)

    shared = output_and_gradients(fused_attention, query, key, value, mask)
    assert_all_close(shared, output_and_gradients(copied, query, key, value, mask), 1e-9)


def test_attention_is_scores_then_softmax_then_a_weighted_sum() -> None:
    """A1 by loops: o_i = Σ_j α_ij v_j, with α_i the softmax of q_i·k_j/√d_k over the allowed j."""
    query, key, value = (torch.randn(n, 4, dtype=torch.float64) for n in (3, 5, 5))
    allowed = torch.rand(3, 5) < 0.7
    allowed[:, 0] = True
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for i in range(3):
        inside = [j for j in range(5) if allowed[i, j]]
        odds = [math.exp(float(query[i] @ key[j]) / 2.0) for j in inside]
        for j, odd in zip(inside, odds, strict=True):
            expected[i] += odd / sum(odds) * value[j]
    torch.testing.assert_close(attention(query, key, value, subsets(allowed)), expected)


def test_one_hot_weights_select_a_single_value() -> None:
    """A1: a query equal to one key and far from the others returns exactly that key's value."""
    key = torch.eye(4, dtype=torch.float64) * 1000
    value = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(attention(key[[2, 0]], key, value), value[[2, 0]], atol=0, rtol=0)


@examples
@given(seed=st.integers(0, 9999), sizes=st.lists(small, min_size=6, max_size=6), joined=st.sampled_from(JOINS))
def test_weights_are_a_distribution_over_exactly_the_allowed_keys(
    seed: int, sizes: list[int], joined: tuple[str, ...]
) -> None:
    query, key, _, mask = draw_attention(seed, sizes, joined, torch.float64)
    weights = attention_weights(query, key, mask)
    open_to = mask.dense(query.shape[2], key.shape[2], query.device).expand_as(weights)
    assert torch.equal(weights > 0, open_to)
    torch.testing.assert_close(weights.sum(-1), open_to.any(-1).double())


FULLY_MASKED = {
    "subsets": subsets(torch.tensor([[True, True, True], [False, False, False]])),
    "additive": additive(torch.tensor([[0.0, 0.0, 0.0], [-torch.inf] * 3])),
    "a bare bias": Mask(bias=torch.tensor([[0.0, 0.0, 0.0], [-torch.inf] * 3])),
    "an empty text": padding(torch.tensor([0]), 3),
    "an empty text with alibi": padding(torch.tensor([0]), 3) & Mask(bias=alibi(torch.arange(1, 3)[None], 3, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", FULLY_MASKED.values(), ids=FULLY_MASKED)
@pytest.mark.parametrize("path", PATHS)
def test_a_query_that_may_attend_to_nothing_reads_zeros_with_finite_gradients(
    path: Callable[..., Tensor], mask: Mask, dtype: torch.dtype
) -> None:
    query, key, value = (torch.randn(1, 2, n, 4, dtype=dtype, requires_grad=True) for n in (2, 3, 3))
    output, *gradients = output_and_gradients(path, query, key, value, mask)
    assert torch.equal(output[:, :, 1], torch.zeros_like(output[:, :, 1]))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][:, :, 1].any(), "what it asks cannot matter"


@pytest.mark.parametrize("mask", [None, causal(), window(2), padding(torch.tensor([0, 0]), 0)])
@pytest.mark.parametrize("path", PATHS)
def test_a_source_without_tokens_reads_as_zeros(path: Callable[..., Tensor], mask: Mask | None) -> None:
    query, key, value = (torch.randn(2, 2, n, 4, requires_grad=True) for n in (3, 0, 0))
    output, *gradients = output_and_gradients(path, query, key, value, mask)
    assert torch.equal(output, torch.zeros(2, 2, 3, 4))
    assert torch.equal(gradients[0], torch.zeros_like(query))


class LargestStorage(TorchDispatchMode):
    """The largest number of elements of any tensor created in this context."""

    elements = 0

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = f(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                capacity = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, capacity)
        return result


@pytest.mark.parametrize("mask", [None, causal(), padding(torch.tensor([90, 256]), 256)])
def test_fused_attention_allocates_no_queries_by_keys_table(mask: Mask | None) -> None:
    """A8: plain attention, plain causal and padding cost memory linear in n; the equation costs n²."""
    query, key, value = (torch.randn(2, 1, 256, 4) for _ in range(3))
    with LargestStorage() as fused:
        fused_attention(query, key, value, mask)
    with LargestStorage() as reference:
        attention(query, key, value, mask)
    assert fused.elements <= query.numel()
    assert reference.elements >= 256 * 256


def test_attention_without_the_softmax_is_linear_in_queries_keys_and_values() -> None:
    """A2: A(Q, K, V) = (QKᵀ/√d_k) V, the masked pairs left out."""
    query, key, value = (torch.randn(n, 4, dtype=torch.float64) for n in (3, 5, 5))
    allowed = torch.rand(3, 5) < 0.6
    output = attention(query, key, value, subsets(allowed), softmax=False)
    torch.testing.assert_close(output, (query @ key.T / 2 * allowed) @ value)
    for scaled in ((3 * query, key, value), (query, 3 * key, value), (query, key, 3 * value)):
        torch.testing.assert_close(attention(*scaled, subsets(allowed), softmax=False), 3 * output)


def test_linear_attention_with_a_minus_infinity_bias_stays_finite() -> None:
    query, key = torch.randn(2, 4), torch.randn(3, 4)
    matrix = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3])
    weights = attention_weights(query, key, additive(matrix), softmax=False)
    expected = scaled_dot(query, key) + torch.tensor([0.0, 0.0, 1.0])
    expected[0, 1], expected[1] = 0.0, 0.0
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (subsets(torch.ones(3, 4, dtype=torch.bool)), r"\(3, 4\)"),
        (padding(torch.tensor([1, 2, 3]), 7), r"\(3, 1, 1, 7\)"),
        (Mask(allowed=torch.ones(4, 5, 7, dtype=torch.bool)), r"\(4, 5, 7\)"),
        (Mask(bias=torch.zeros(5, 6)), r"\(5, 6\)"),
        (Mask(allowed=torch.ones(7, dtype=torch.bool)), r"\(7,\)"),
    ],
    ids=["queries and keys", "batch", "heads", "bias", "too few axes"],
)
def test_a_mask_of_the_wrong_shape_is_refused_with_the_expected_shape(
    path: Callable[..., Tensor], mask: Mask, shape: str
) -> None:
    query, key, value = (torch.randn(2, 3, n, 4) for n in (5, 7, 7))
    with pytest.raises(UsageError, match=rf"of shape {shape} does not fit .*5 queries × 7 keys"):
        path(query, key, value, mask)


# ---- layers of several heads


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
def test_a_width_its_heads_do_not_divide_gets_the_nearest_that_they_do(width: int, heads: int, advice: str) -> None:
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
