"""Masks (A6): each piece against its definition as a set of keys, and `&` as their intersection."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.masks import UNMASKED, Mask, additive, causal, documents, exclude_self, padding, subsets, window

CPU = torch.device("cpu")
lengths = st.integers(0, 7)
examples = settings(deadline=None, max_examples=40, derandomize=True)


def table(queries: int, keys: int, may: Callable[[int, int], bool]) -> Tensor:
    """True where query i, counted from the end of the keys as in decoding, may read key j."""
    before = keys - queries
    return torch.tensor([[may(before + i, j) for j in range(keys)] for i in range(queries)]).reshape(queries, keys)


@examples
@given(queries=lengths, keys=lengths)
def test_without_a_mask_every_query_attends_to_every_key(queries: int, keys: int) -> None:
    assert torch.equal(UNMASKED.dense(queries, keys, CPU), torch.ones(queries, keys, dtype=torch.bool))


@examples
@given(queries=lengths, keys=lengths)
def test_causal_is_the_set_of_keys_not_after_the_query(queries: int, keys: int) -> None:
    """S_i = {1..i}. Fewer queries than keys are the last ones; more than keys, the first see nothing."""
    dense = causal().dense(queries, keys, CPU).expand(queries, keys)
    assert torch.equal(dense, table(queries, keys, lambda i, j: j <= i).bool())


@examples
@given(queries=lengths, keys=lengths, size=st.integers(1, 8), backwards=st.booleans())
def test_a_window_is_the_set_of_keys_nearer_than_its_size(queries: int, keys: int, size: int, backwards: bool) -> None:
    mask = window(size) & causal() if backwards else window(size)
    expected = table(queries, keys, lambda i, j: abs(i - j) < size and (j <= i or not backwards))
    assert torch.equal(mask.dense(queries, keys, CPU).expand(queries, keys), expected.bool())


@examples
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_padding_is_the_set_of_the_first_keys_of_each_sequence(real: list[int]) -> None:
    dense = padding(torch.tensor(real), 5).dense(3, 5, CPU)
    assert dense.shape == (len(real), 1, 3, 5)
    for row, length in zip(dense, real, strict=True):
        assert torch.equal(row[0], torch.tensor([[j < length for j in range(5)]] * 3))


@examples
@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3))
def test_document_masks_separate_documents(ids: list[list[int]]) -> None:
    dense = documents(torch.tensor(ids)).dense(6, 6, CPU)
    for row, owners in zip(dense, ids, strict=True):
        assert torch.equal(row[0], table(6, 6, lambda i, j, owners=owners: owners[i] == owners[j]))


def test_subsets_are_used_as_given() -> None:
    allowed = torch.rand(2, 3, 4, 5) < 0.5
    assert torch.equal(subsets(allowed).dense(4, 5, CPU), allowed)


def test_additive_converts_a_matrix_of_zeros_and_minus_infinity() -> None:
    matrix = torch.tensor([[0.0, -torch.inf], [0.5, 0.0]])
    mask = additive(matrix)
    assert torch.equal(mask.dense(2, 2, CPU), torch.tensor([[True, False], [True, True]]))
    assert mask.bias is not None
    assert torch.equal(mask.bias, matrix)


PIECES = {
    "causal": causal,
    "exclude_self": exclude_self,
    "wide window": lambda: window(4),
    "narrow window": lambda: window(2),
    "padding": lambda: padding(torch.randint(0, 6, (2,)), 5),
    "documents": lambda: documents(torch.randint(0, 2, (2, 5))),
    "subsets": lambda: subsets(torch.rand(5, 5) < 0.5),
    "additive": lambda: additive(torch.zeros(5, 5).masked_fill(torch.rand(5, 5) < 0.5, -torch.inf)),
    "everything": lambda: UNMASKED,
}


@pytest.mark.parametrize("left", PIECES)
@pytest.mark.parametrize("right", PIECES)
def test_combining_masks_is_the_intersection_of_their_sets(left: str, right: str) -> None:
    a, b = PIECES[left](), PIECES[right]()
    both = a.dense(5, 5, CPU) & b.dense(5, 5, CPU)
    assert torch.equal(torch.broadcast_tensors((a & b).dense(5, 5, CPU), both)[0], both)


def test_combining_masks_adds_biases() -> None:
    joined = Mask(bias=torch.full((3, 3), 2.0)) & Mask(bias=torch.ones(2, 1, 3, 3)) & causal()
    assert joined.bias is not None
    assert torch.equal(joined.bias, torch.full((2, 1, 3, 3), 3.0))


def test_resolve_sets_the_bias_to_minus_infinity_where_masked() -> None:
    """A fused kernel takes one table: the bias, with −inf wherever a query may not attend."""
    settled = (causal() & Mask(bias=torch.ones(3, 3))).resolve(3, 3, CPU)
    assert settled.bias is not None
    assert torch.equal(settled.bias, torch.ones(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf))


@pytest.mark.parametrize("queries", [1, 3, 6])
def test_a_query_leaves_itself_out_at_its_own_position(queries: int) -> None:
    keys = 6
    itself = torch.eye(keys, dtype=torch.bool)[keys - queries :]
    for mask in (exclude_self(), exclude_self() & causal(), causal() & exclude_self() & window(3)):
        others = Mask(causal=mask.causal, window=mask.window).dense(queries, keys, CPU)
        assert torch.equal(mask.dense(queries, keys, CPU), others & ~itself)
        assert torch.equal(mask.resolve(queries, keys, CPU).dense(queries, keys, CPU), others & ~itself)


def test_a_plain_causal_mask_stays_a_flag() -> None:
    settled = (causal() & UNMASKED).resolve(1000, 1000, CPU)
    assert settled.causal
    assert settled.allowed is None
    assert settled.bias is None


def test_resolving_no_mask_creates_no_table() -> None:
    settled = UNMASKED.resolve(1000, 1000, CPU)
    assert (settled.allowed, settled.bias, settled.causal, settled.window) == (None, None, False, None)


def test_a_padding_mask_has_one_row_for_all_queries_and_heads() -> None:
    settled = padding(torch.tensor([3, 1000]), 1000).resolve(1000, 1000, CPU)
    assert settled.allowed is not None
    assert settled.allowed.shape == (2, 1, 1, 1000)


def test_one_query_at_the_end_of_its_keys_needs_no_causal_table() -> None:
    """The usual decode step: all keys precede the newest token."""
    settled = causal().resolve(1, 1000, CPU)
    assert not settled.causal
    assert settled.allowed is None


@pytest.mark.parametrize("left", PIECES)
@pytest.mark.parametrize("right", [*PIECES, "alibi"])
def test_resolving_twice_returns_the_same_mask(left: str, right: str) -> None:
    """A model resolves once for all layers; each layer then gets the same object back."""
    other = Mask(bias=-torch.rand(2, 5, 5)) if right == "alibi" else PIECES[right]()
    settled = (PIECES[left]() & other).resolve(5, 5, CPU)
    assert settled.resolve(5, 5, CPU) is settled


def test_resolving_does_not_change_which_keys_are_allowed() -> None:
    mask = causal() & window(3) & padding(torch.tensor([2, 4]), 6)
    assert torch.equal(mask.resolve(4, 6, CPU).dense(4, 6, CPU), mask.dense(4, 6, CPU))


@examples
@given(
    starts=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    queries=st.integers(1, 3),
    size=st.none() | st.integers(1, 4),
)
def test_ragged_rows_are_causal_from_their_own_positions(starts: list[int], queries: int, size: int | None) -> None:
    """`positions` are those of each row's queries, as when decoding texts of different lengths."""
    keys = max(starts) + queries
    positions = torch.tensor(starts)[:, None] + torch.arange(queries)
    settled = Mask(causal=True, window=size).resolve(queries, keys, CPU, positions)
    assert settled.allowed is not None
    for row, start in zip(settled.allowed, starts, strict=True):
        for i in range(queries):
            near = [j <= start + i and (size is None or start + i - j < size) for j in range(keys)]
            assert row[0, i].tolist() == near


def test_a_single_ragged_query_masks_keys_past_its_row() -> None:
    settled = causal().resolve(1, 4, CPU, torch.tensor([[1], [3]]))
    assert settled.allowed is not None
    assert settled.allowed[:, 0, 0].tolist() == [[True, True, False, False], [True, True, True, True]]


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_that_is_not_boolean_is_refused_with_a_pointer_to_additive(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=rf"must be boolean .* got {dtype}.*; .* with additive\(\)"):
        Mask(allowed=torch.ones(2, 2, dtype=dtype))


@pytest.mark.parametrize("shape", [(4, 4), (5, 4), (4, 6), (2, 1, 3, 6), (6, 5), (6,), ()])
def test_a_table_that_fits_no_queries_and_keys_is_refused_with_both_sizes(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"mask of shape \(.*\) does not fit 5 queries × 6 keys"):
        Mask(allowed=torch.ones(shape, dtype=torch.bool)).resolve(5, 6, CPU)
    with pytest.raises(UsageError, match=r"bias of shape \(.*\) does not fit 5 queries × 6 keys"):
        Mask(bias=torch.ones(shape)).resolve(5, 6, CPU)


@pytest.mark.parametrize("shape", [(5, 6), (1, 6), (5, 1), (2, 1, 1, 6), (3, 5, 6)])
def test_axes_of_size_1_stand_for_all_queries_or_all_keys(shape: tuple[int, ...]) -> None:
    allowed = torch.rand(shape) < 0.5
    dense = Mask(allowed=allowed).dense(5, 6, CPU)
    assert torch.equal(dense, allowed.expand(*shape[:-2], 5, 6))


def test_masks_that_do_not_fit_together_are_refused_with_both_shapes() -> None:
    with pytest.raises(UsageError, match=r"masks of shapes \(3, 3\) and \(1, 1, 1, 4\) do not fit together"):
        subsets(torch.ones(3, 3, dtype=torch.bool)) & padding(torch.tensor([1]), 4)


@pytest.mark.parametrize("size", [0, -3])
def test_a_window_must_be_positive(size: int) -> None:
    with pytest.raises(UsageError, match=f"window must be positive, got {size}"):
        window(size)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mask(allowed=[[True]]), "a mask must be boolean .* got a list"),  # type: ignore[arg-type]
        (lambda: Mask(bias=torch.ones(2, 2, dtype=torch.long)), "a bias must be a floating-point tensor, got"),
        (lambda: window(2.5), r"window must be a whole number of positions, got 2\.5"),  # type: ignore[arg-type]
        (lambda: causal() & torch.ones(2, 2).bool(), r"combined with a Mask, got torch.bool .* subsets\(\)"),  # type: ignore[operator]
        (lambda: additive([[0.0]]), "an additive matrix is a floating-point tensor, got a list"),  # type: ignore[arg-type]
        (lambda: padding([1, 2], 3), "lengths must be a tensor .* got a list"),  # type: ignore[arg-type]
        (lambda: documents(torch.ones(3)), r"document ids must be a tensor of batch × tokens, got .*\(3,\)"),
    ],
)  # fmt: skip
def test_masks_of_anything_but_fitting_tensors_are_refused(make: Callable[[], Mask], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
