"""KV cache: appending, growing, reordering, and rows of different lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.layers.block import Block, Stack
from heedful.layers.feed_forward import FeedForward
from heedful.layers.kv_cache import KVCache, LayerKVCache
from heedful.layers.masks import Mask, causal, padding, window
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.residual import Residual

CPU = torch.device("cpu")
examples = settings(deadline=None, max_examples=20, derandomize=True)
few_examples = settings(examples, max_examples=5)
chunks = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def empty_cache(batch: int, *, layers: int = 1, capacity: int = 0) -> KVCache:
    return KVCache(batch, layers, device=CPU, capacity=capacity)


def append(state: KVCache, tokens: int, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
    """Append random keys and values to the first layer; return the new ones and all stored."""
    batch = len(state.lengths)
    key, value = torch.randn(batch, 2, tokens, 3), torch.randn(batch, 2, tokens, 5)
    stored = state.layers[0].append(key, value)
    state.advance(tokens, lengths)
    return key, value, *stored


def test_a_new_cache_is_empty() -> None:
    state = empty_cache(3, layers=2)
    assert state.lengths.tolist() == [0, 0, 0]
    assert [layer.keys for layer in state.layers] == [None, None]
    assert state.positions(2).tolist() == [[0, 1]]


@pytest.mark.parametrize("initial_capacity", [0, 3, 100])
@examples
@given(chunks)
def test_append_returns_all_keys_and_values_in_order(initial_capacity: int, sizes: list[int]) -> None:
    """Within the preallocated capacity and past it."""
    state, keys, values = empty_cache(2, capacity=initial_capacity), [], []
    for size in sizes:
        key, value, all_keys, all_values = append(state, size)
        keys, values = [*keys, key], [*values, value]
        assert torch.equal(all_keys, torch.cat(keys, 2))
        assert torch.equal(all_values, torch.cat(values, 2))
    assert state.lengths.tolist() == [sum(sizes)] * 2


def test_preallocated_memory_is_written_in_place() -> None:
    state = empty_cache(2, capacity=6)
    places = {append(state, 2)[2].data_ptr() for _ in range(3)}
    assert len(places) == 1
    assert state.layers[0].keys is not None
    assert state.layers[0].keys.shape[2] == 6


def test_past_its_capacity_a_cache_grows_by_doubling() -> None:
    """Copying stays linear in the length of the text: 7 reallocations for 64 tokens, not 64."""
    state = empty_cache(1)
    sizes = []
    for _ in range(64):
        append(state, 1)
        assert state.layers[0].keys is not None
        sizes.append(state.layers[0].keys.shape[2])
    assert sorted(set(sizes)) == [1, 2, 4, 8, 16, 32, 64]


@examples
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_rows_of_different_lengths_write_at_their_own_positions(news: list[tuple[int, int]]) -> None:
    """Each row stores its real tokens without gaps; padding is overwritten by the next tokens."""
    state = empty_cache(2)
    real: list[list[Tensor]] = [[], []]
    for lengths in news:
        key, _, stored, _ = append(state, max(*lengths, 1), torch.tensor(lengths))
        for row, length in enumerate(lengths):
            real[row].extend(key[row, :, :length].unbind(1))
            if real[row]:
                assert torch.equal(stored[row, :, : len(real[row])], torch.stack(real[row], 1))
    assert state.lengths.tolist() == [len(row) for row in real]


def test_positions_continue_from_each_row_s_length() -> None:
    state = empty_cache(2)
    append(state, 3)
    assert state.positions(2).tolist() == [[3, 4]]
    append(state, 2, torch.tensor([2, 1]))
    assert state.positions(2).tolist() == [[5, 6], [4, 5]]


def test_reorder_keeps_drops_and_copies_rows() -> None:
    state = empty_cache(3)
    key, value, *_ = append(state, 4, torch.tensor([4, 2, 3]))
    memory = torch.randn(3, 2, 6, 3), torch.randn(3, 2, 6, 5)
    state.layers[0].memory = memory
    state.memory_mask = padding(torch.tensor([6, 1, 4]), 6)
    rows = torch.tensor([2, 0, 2, 2])
    state.reorder(rows)
    layer = state.layers[0]
    assert state.lengths.tolist() == [3, 4, 3, 3]
    assert layer.keys is not None
    assert layer.values is not None
    assert torch.equal(layer.keys[:, :, :4], key[rows])
    assert torch.equal(layer.values[:, :, :4], value[rows])
    assert layer.memory is not None
    assert all(torch.equal(new, old[rows]) for new, old in zip(layer.memory, memory, strict=True))
    assert state.memory_mask.dense(1, 6, CPU).sum(-1).flatten().tolist() == [4, 6, 4, 4]


def test_reordering_an_empty_cache_changes_only_its_lengths() -> None:
    state = empty_cache(2)
    state.reorder(torch.tensor([1, 1, 0]))
    assert state.lengths.tolist() == [0, 0, 0]
    *_, stored, _ = append(state, 2)
    assert stored.shape == (3, 2, 2, 3)


def test_copied_beams_are_independent() -> None:
    state = empty_cache(1, capacity=8)
    first, *_ = append(state, 2)
    state.reorder(torch.tensor([0, 0]))
    second, _, stored, _ = append(state, 1)
    assert not torch.equal(second[0], second[1])
    assert torch.equal(stored, torch.cat([first.expand(2, -1, -1, -1), second], 2))


# ---- reading with a state equals reading everything at once


STACKS: dict[str, tuple[dict[str, Any], dict[str, Any], Mask]] = {
    "plain": ({}, {}, causal()),
    "rotary": ({"rotary_base": 100.0}, {}, causal()),
    "alibi": ({"alibi": True}, {}, causal()),
    "window": ({}, {}, causal() & window(2)),
    "alibi in a window": ({"alibi": True}, {}, causal() & window(3)),
    "shared heads": ({"rotary_base": 100.0}, {"key_value_heads": 1, "value_width": 3}, causal()),
    "additive score": ({}, {"score": "additive"}, causal()),
}


def make_stack(kind: str, *, cross: bool = False) -> tuple[Stack, Mask]:
    options, attention, mask = STACKS[kind]
    blocks = [
        Block(
            SelfAttention(8, 2, **attention),
            FeedForward(8, 12),
            lambda _: Residual(8, order="pre"),
            CrossAttention(8, 2, **attention) if cross else None,
        )
        for _ in range(2)
    ]
    return Stack(blocks, **options).double(), mask


@pytest.mark.parametrize("kind", STACKS)
@torch.no_grad()
@few_examples
@given(sizes=chunks, seed=st.integers(0, 999))
def test_cached_decoding_in_chunks_equals_one_forward_pass(kind: str, sizes: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    stack, mask = make_stack(kind)
    x, state = torch.randn(2, sum(sizes), 8, dtype=torch.float64), empty_cache(2, layers=2)
    pieces = []
    for chunk in x.split(sizes, dim=1):
        pieces.append(stack(chunk, mask, cache=state))
        state.advance(chunk.shape[1])
    torch.testing.assert_close(torch.cat(pieces, 1), stack(x, mask), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", STACKS)
@torch.no_grad()
@few_examples
@given(
    prompts=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    steps=st.integers(1, 3),
    extra=st.integers(0, 2),
    seed=st.integers(0, 999),
)
def test_rows_of_different_lengths_decode_as_each_does_alone(
    kind: str, prompts: list[int], steps: int, extra: int, seed: int
) -> None:
    """Prompts are padded at the end; each row's next tokens overwrite the padding."""
    torch.manual_seed(seed)
    stack, mask = make_stack(kind)
    batch, state = len(prompts), empty_cache(len(prompts), layers=2)
    prompt = torch.randn(batch, max(prompts) + extra, 8, dtype=torch.float64)
    news = torch.randn(batch, steps, 8, dtype=torch.float64)
    stack(prompt, mask, cache=state)
    state.advance(prompt.shape[1], torch.tensor(prompts))
    outputs = []
    for step in news.split(1, dim=1):
        outputs.append(stack(step, mask, cache=state))
        state.advance(1)
    for row, length in enumerate(prompts):
        text = torch.cat([prompt[row, :length], news[row]])[None]
        together = torch.cat(outputs, 1)[row]
        torch.testing.assert_close(together, stack(text, mask)[0, length:], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_cached_cross_attention_keys_equal_projecting_the_source_at_every_step() -> None:
    stack, mask = make_stack("plain", cross=True)
    memory, real = torch.randn(2, 4, 8, dtype=torch.float64), padding(torch.tensor([4, 2]), 4)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    state = empty_cache(2, layers=2)
    state.memory_mask = real
    for layer, block in zip(state.layers, stack.blocks, strict=True):
        assert isinstance(layer, LayerKVCache)
        layer.memory = block.cross.project(memory)
    full = stack(x, mask, memory=memory, memory_mask=real)
    torch.testing.assert_close(stack(x[:, :2], mask, cache=state), full[:, :2])
    state.advance(2)
    state.reorder(torch.tensor([1, 0, 1]))
    torch.testing.assert_close(stack(x[[1, 0, 1], 2:], mask, cache=state), full[[1, 0, 1], 2:])
