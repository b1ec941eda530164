"""The block and the stack (B4–B6), with their symmetry, causality and padding (A6, A7, T3)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.layers.block import Block, Stack, position_ids
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import UNMASKED, Mask, causal, documents, padding, window
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.norms import make_norm
from heedful.layers.positions import alibi, rotation
from heedful.layers.residual import Residual

examples = settings(deadline=None, max_examples=10, derandomize=True)
seeds = st.integers(0, 9999)
orders = st.sampled_from(["pre", "post"])
SCHEMES: dict[str, dict[str, Any]] = {"no positions": {}, "rotary": {"rotary_base": 100.0}, "alibi": {"alibi": True}}
schemes = st.sampled_from(sorted(SCHEMES)).map(SCHEMES.__getitem__)


def make_block(order: str = "post", *, cross: bool = False, **attention: Any) -> Block:
    return Block(
        SelfAttention(8, 2, **attention),
        FeedForward(8, 12),
        lambda _: Residual(8, order=order),
        CrossAttention(8, 2, **attention) if cross else None,
    ).double()


def make_stack(order: str = "post", layers: int = 2, **options: Any) -> Stack:
    return Stack([make_block(order) for _ in range(layers)], **options)


def draw(seed: int, *shape: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64)


def test_an_encoder_block_is_attention_then_feed_forward_each_in_its_residual() -> None:
    """B4, post-norm: a = LN(x + attention(x)), z = LN(a + feed_forward(a))."""
    block, x = make_block("post"), draw(0, 2, 5, 8)
    first, second = block.residual
    a = first.norm(x + block.attention(x))
    torch.testing.assert_close(block(x), second.norm(a + block.feed_forward(a)))


def test_a_pre_norm_block_adds_to_a_stream_it_never_normalizes() -> None:
    """a = x + attention(LN(x)), z = a + feed_forward(LN(a))."""
    block, x = make_block("pre"), draw(0, 2, 5, 8)
    first, second = block.residual
    a = x + block.attention(first.norm(x))
    torch.testing.assert_close(block(x), a + block.feed_forward(second.norm(a)))


def test_a_decoder_block_is_self_attention_then_cross_attention_then_feed_forward() -> None:
    """B5: masked self-attention, cross-attention with queries from the decoder, feed-forward."""
    block, x, memory = make_block("post", cross=True), draw(0, 2, 5, 8), draw(1, 2, 3, 8)
    first, second, third = block.residual
    real = padding(torch.tensor([3, 1]), 3)
    a = first.norm(x + block.attention(x, causal()))
    assert block.cross is not None
    b = second.norm(a + block.cross(a, memory, real))
    expected = third.norm(b + block.feed_forward(b))
    torch.testing.assert_close(block(x, causal(), memory=memory, memory_mask=real), expected)


def test_a_block_with_cross_attention_requires_a_memory() -> None:
    with pytest.raises(AssertionError, match="reads a memory"):
        make_block(cross=True)(draw(0, 1, 2, 8))


@pytest.mark.parametrize("norm", [None, make_norm("layer", 8).double()], ids=["bare", "with a last norm"])
def test_a_stack_is_the_composition_of_its_blocks(norm: Any) -> None:
    """B6: f_L ∘ … ∘ f_1."""
    stack, x = make_stack("pre", layers=3, norm=norm), draw(0, 2, 5, 8)
    expected = x
    for block in stack.blocks:
        expected = block(expected)
    torch.testing.assert_close(stack(x), expected if norm is None else norm(expected))


def test_blocks_share_no_weights_and_all_get_gradients() -> None:
    stack = Stack([make_block("pre", cross=True) for _ in range(3)])
    stack(draw(0, 2, 5, 8), causal(), memory=draw(1, 2, 4, 8)).square().sum().backward()
    weights = dict(stack.named_parameters())
    assert len({weight.data_ptr() for weight in weights.values()}) == len(weights)
    assert [name for name, weight in weights.items() if weight.grad is None or not weight.grad.any()] == []


@examples
@given(
    seed=seeds,
    tokens=st.integers(1, 6),
    order=orders,
    score=st.sampled_from(["scaled_dot", "bilinear", "additive"]),
    softmax=st.booleans(),
)
def test_without_positions_and_mask_a_stack_is_permutation_equivariant(
    seed: int, tokens: int, order: str, score: str, softmax: bool
) -> None:
    """A7: f(Px) = P f(x), for every score and without the softmax too."""
    x = draw(seed, 2, tokens, 8)
    stack = Stack([make_block(order, score=score, softmax=softmax) for _ in range(2)])
    shuffled = torch.randperm(tokens)
    torch.testing.assert_close(stack(x[:, shuffled]), stack(x)[:, shuffled])


@pytest.mark.parametrize(
    ("mask", "scheme"),
    [(causal(), "no positions"), (UNMASKED, "rotary"), (UNMASKED, "alibi"), (window(2), "no positions")],
    ids=["a causal mask", "rotary positions", "alibi", "a window"],
)
def test_masks_and_positions_break_permutation_equivariance(mask: Mask, scheme: str) -> None:
    """Q2: position encodings do, and so does a causal mask alone."""
    stack, x = make_stack(**SCHEMES[scheme]), draw(0, 1, 5, 8)
    shuffled = torch.tensor([4, 2, 0, 3, 1])
    assert not torch.allclose(stack(x[:, shuffled], mask), stack(x, mask)[:, shuffled], atol=1e-3)


@examples
@given(seed=seeds, tokens=st.integers(2, 7), order=orders, scheme=schemes, data=st.data())
def test_with_a_causal_mask_a_later_token_never_changes_an_earlier_output(
    seed: int, tokens: int, order: str, scheme: dict[str, Any], data: st.DataObject
) -> None:
    """A6: S_i = {1..i}, through any number of blocks. The changed token's own output does change."""
    changed_from = data.draw(st.integers(1, tokens - 1))
    x = draw(seed, 2, tokens, 8)
    stack = make_stack(order, **scheme)
    other = torch.cat([x[:, :changed_from], 10 * torch.randn_like(x[:, changed_from:])], dim=1)
    before, after = stack(x, causal()), stack(other, causal())
    torch.testing.assert_close(before[:, :changed_from], after[:, :changed_from])
    assert not torch.allclose(before[:, changed_from], after[:, changed_from])


def test_without_a_causal_mask_a_later_token_changes_earlier_outputs() -> None:
    stack, x = make_stack(), draw(0, 1, 4, 8)
    other = torch.cat([x[:, :3], torch.randn_like(x[:, 3:])], dim=1)
    assert not torch.allclose(stack(x)[:, 0], stack(other)[:, 0])


@examples
@given(
    seed=seeds,
    order=orders,
    scheme=schemes,
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    extra=st.integers(0, 3),
)
def test_padding_does_not_change_outputs(
    seed: int, order: str, scheme: dict[str, Any], lengths: list[int], extra: int
) -> None:
    """T3: each text has the outputs it has alone, whatever the padding contains."""
    tokens = max(lengths) + extra
    x = draw(seed, len(lengths), tokens, 8)
    stack = make_stack(order, **scheme)
    real = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    together = stack(torch.where(real[..., None], x, 1e6), padding(torch.tensor(lengths), tokens))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(together[row, :length], stack(x[row : row + 1, :length])[0])


@examples
@given(seed=seeds, order=orders, lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_source_padding_does_not_change_decoder_outputs(seed: int, order: str, lengths: list[int]) -> None:
    x, memory = draw(seed, len(lengths), 3, 8), torch.randn(len(lengths), 6, 8, dtype=torch.float64)
    stack = Stack([make_block(order, cross=True) for _ in range(2)])
    together = stack(x, causal(), memory=memory, memory_mask=padding(torch.tensor(lengths), 6))
    for row, length in enumerate(lengths):
        alone = stack(x[row : row + 1], causal(), memory=memory[row : row + 1, :length])
        torch.testing.assert_close(together[row], alone[0])


def test_a_row_of_padding_alone_gives_finite_outputs() -> None:
    stack, x = make_stack(), draw(0, 2, 3, 8).requires_grad_()
    output = stack(x, padding(torch.tensor([0, 3]), 3))
    output.square().sum().backward()
    assert output.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in stack.parameters() if weight.grad is not None)


@examples
@given(seed=seeds, scheme=schemes, lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_packed_documents_equal_separate_rows(seed: int, scheme: dict[str, Any], lengths: list[int]) -> None:
    """With relative positions too: only differences matter, so no document needs to start at 0."""
    x = draw(seed, 1, sum(lengths), 8)
    stack = make_stack(**scheme)
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    packed = stack(x, causal() & documents(ids)).split(lengths, dim=1)
    for together, alone in zip(packed, x.split(lengths, dim=1), strict=True):
        torch.testing.assert_close(together, stack(alone, causal()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_windowed_stack_has_a_receptive_field_of_one_window_per_block(layers: int) -> None:
    """With windows of 2 and L blocks, a token depends on its L nearest neighbors on either side and no others."""
    stack, x = make_stack(layers=layers), draw(0, 1, 9, 8)
    other = x.clone()
    other[:, 4] += 1
    moved = (stack(x, window(2)) - stack(other, window(2))).abs().amax(-1)[0] > 1e-12
    assert moved.tolist() == [abs(i - 4) <= layers for i in range(9)]


def test_alibi_and_rotary_apply_to_every_block() -> None:
    """Computed once in the stack; equal to passing each block its mask or angles."""
    x = draw(0, 2, 5, 8)
    positions = position_ids(x)
    leaning, turning = make_stack(alibi=True), make_stack(rotary_base=50.0)
    expected = x
    for block in leaning.blocks:
        expected = block(expected, causal() & Mask(bias=alibi(positions, 5, 2)))
    torch.testing.assert_close(leaning(x, causal()), expected)
    expected = x
    for block in turning.blocks:
        expected = block(expected, causal(), rotation=rotation(positions, 4, base=50.0))
    torch.testing.assert_close(turning(x, causal()), expected)
