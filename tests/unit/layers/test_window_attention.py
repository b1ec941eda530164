"""Windows in blocks (A6): equal to the table, forward, backward and over a KV cache, in memory linear in the length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import heedful
from heedful.layers import masks
from heedful.layers.attention import attention, fused_attention
from heedful.layers.masks import Mask, additive, causal, documents, padding, window
from heedful.layers.positions import alibi
from heedful.layers.window_attention import block_ranges

QUERIES, KEYS = 300, 300
MASKS: dict[str, Callable[[], Mask]] = {
    "window": lambda: window(7),
    "of one": lambda: window(1),
    "longer than a block": lambda: window(140),
    "causal": lambda: window(50) & causal(),
    "padding": lambda: window(20) & padding(torch.tensor([0, 211]), KEYS),
    "documents": lambda: window(20) & causal() & documents(torch.arange(KEYS).div(37).long().expand(2, -1)),
    "alibi": lambda: window(20) & causal() & Mask(bias=alibi(torch.arange(KEYS)[None], KEYS, 4)),
    "additive": lambda: (
        window(20) & additive(torch.zeros(KEYS, KEYS).masked_fill(torch.rand(KEYS, KEYS) < 0.4, -torch.inf))
    ),
}


def inputs(queries: int = QUERIES, keys: int = KEYS, groups: int = 4) -> list[Tensor]:
    shapes = (4, queries, 3), (groups, keys, 3), (groups, keys, 2)
    return [torch.randn(2, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def output_and_gradients(output: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return [output, *torch.autograd.grad(output.square().sum(), tensors)]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("name", MASKS)
def test_a_window_in_blocks_equals_its_table_and_so_do_its_gradients(name: str, groups: int) -> None:
    tensors, mask = inputs(groups=groups), MASKS[name]()
    assert mask.resolve(QUERIES, KEYS, torch.device("cpu")).window, "computed in blocks"
    blocks = output_and_gradients(fused_attention(*tensors, mask), tensors)
    table = mask.as_table(QUERIES, KEYS, torch.device("cpu"))
    for actual, expected in zip(blocks, output_and_gradients(fused_attention(*tensors, table), tensors), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-9, rtol=0)
    query, key, value = tensors
    key, value = (part.repeat_interleave(4 // groups, 1) for part in (key, value))
    torch.testing.assert_close(blocks[0], attention(query, key, value, mask), atol=1e-9, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(1, 300), (2, 300), (150, 400), (290, 257), (300, 260), (0, 300)])
@pytest.mark.parametrize("mask", [window(9), window(9) & causal()])
def test_queries_at_the_end_of_their_keys_have_the_same_window_in_blocks(mask: Mask, sizes: tuple[int, int]) -> None:
    tensors = inputs(*sizes)
    table = mask.as_table(*sizes, torch.device("cpu"))
    torch.testing.assert_close(fused_attention(*tensors, mask), fused_attention(*tensors, table))


@torch.no_grad()
def test_cached_decoding_with_a_window_equals_one_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = heedful.build("laptop-writer", vocabulary=11, width=16, heads=2, layers=2, window=5, max_length=400).eval()
    tokens = torch.randint(0, 11, (2, 300))
    cache = model.start(2)
    parts = [model.extend(tokens[:, a:b], cache) for a, b in ((0, 270), (270, 271), (271, 272), (272, 300))]
    in_blocks = model(tokens)
    torch.testing.assert_close(torch.cat(parts, 1), in_blocks, atol=1e-5, rtol=0)
    monkeypatch.setattr(masks, "MIN_LOCAL_KEYS", 1000)
    torch.testing.assert_close(in_blocks, model(tokens), atol=1e-5, rtol=0)


class LargestTensor(TorchDispatchMode):
    """The largest number of elements of any tensor created in this context."""

    elements = 0

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = f(*args, **(kwargs or {}))
        sizes = (leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self.elements = max(self.elements, *sizes, 0)
        return result


def test_a_window_allocates_nothing_that_grows_with_the_square_of_the_length() -> None:
    query, key, value = (torch.randn(1, 1, 6000, 8, requires_grad=True) for _ in range(3))
    with LargestTensor() as largest:
        fused_attention(query, key, value, window(64) & causal()).sum().backward()
    assert largest.elements <= 6000 * 8


def test_blocks_cover_every_query_once_and_no_key_beyond_a_window() -> None:
    for mask in (window(30), window(30) & causal()):
        blocks = block_ranges(1000, 1000, mask, 128)
        assert [row for rows, _ in blocks for row in range(rows.start, rows.stop)] == list(range(1000))
        assert all(column.stop - column.start <= 128 + 2 * 29 for _, column in blocks)
