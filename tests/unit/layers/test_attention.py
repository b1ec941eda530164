"""Attention (A1–A3, A6, A8, A9): the reference equation and the fused path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.errors import UsageError
from heedful.layers.attention import (
    attention,
    attention_weights,
    fused_attention,
)
from heedful.layers.masks import Mask, additive, causal, documents, padding, subsets, window
from heedful.layers.positions import alibi
from heedful.layers.scores import scaled_dot

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
    assert not gradients[0][:, :, 1].any(), "a query that attends to nothing has no gradient"


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
