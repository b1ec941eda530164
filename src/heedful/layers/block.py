"""The transformer block, and the stack of blocks (B4–B6)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.kernels import dispatch
from heedful.layers.feed_forward import FeedForward
from heedful.layers.kv_cache import KVCache, LayerKVCache
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.positions import Rotation, alibi, rotation
from heedful.layers.residual import Residual
from heedful.shapes import Float, Int


class Block(nn.Module):
    """Self-attention, then (in an encoder-decoder's decoder) cross-attention, then feed-forward.

    Each has its own residual connection        Vaswani 2017, figure 1 · B4, B5
    """

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: FeedForward,
        residual: Callable[[], Residual],
        cross: CrossAttention | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feed_forward = feed_forward
        self.residual = nn.ModuleList(residual() for _ in range(2 if cross is None else 3))

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask | None = None,
        *,
        rotation: Rotation | None = None,
        cache: LayerKVCache | None = None,
        memory: Float[Tensor, "batch keys width"] | tuple[Tensor, Tensor] | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        first, *middle, last = self.residual
        x = first(x, lambda x: self.attention(x, mask, rotation=rotation, cache=cache))
        if self.cross is not None:
            assert memory is not None, "a decoder block with cross-attention reads a memory"
            x = middle[0](x, lambda x: self.cross(x, memory, memory_mask))
        return last(x, self.feed_forward)


class Stack(nn.Module):
    """f_L ∘ … ∘ f_1, then one last norm where the blocks are pre-norm        B6

    Masks, rotary angles and ALiBi biases are computed here, once for all blocks.
    """

    def __init__(
        self,
        blocks: list[Block],
        *,
        norm: nn.Module | None = None,
        rotary_base: float | None = None,
        alibi: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.rotary_base = rotary_base
        self.alibi = alibi
        self.skip = all(residual.skip for residual in blocks[0].residual)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask = UNMASKED,
        *,
        memory: Float[Tensor, "batch keys width"] | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        angles, resolved = self._angles_and_mask(x, mask, cache)
        if cache is None:
            for block in self.blocks:
                x = block(x, resolved, rotation=angles, memory=memory, memory_mask=memory_mask)
        elif resolved is None and dispatch.has_fused_decode_step(x, skip=self.skip):
            x = dispatch.fused_decode_step(self.blocks, x, cache, angles)
        else:
            for block, layer in zip(self.blocks, cache.layers, strict=True):
                x = block(x, resolved, rotation=angles, cache=layer, memory=layer.memory, memory_mask=cache.memory_mask)
        return x if self.norm is None else self.norm(x)

    def _angles_and_mask(self, x: Tensor, mask: Mask, cache: KVCache | None) -> tuple[Rotation | None, Mask | None]:
        """Rotary angles and the resolved mask; no mask if `decode_attention` reads the past and nothing else.

        Only differences of positions matter here, so packed documents need not start from 0.
        """
        queries, attention = x.shape[1], self.attention
        positions = position_ids(x) if cache is None else cache.positions(queries)
        keys = queries if cache is None else cache.key_count(queries)
        if self.alibi:
            mask = mask & Mask(bias=alibi(positions, keys, attention.heads))
        angles = rotation(positions, attention.d_k, base=self.rotary_base) if self.rotary_base else None
        if cache is not None and cache.static_index is not None:
            if mask.is_causal_only and dispatch.has_decode_attention(attention, x):
                return angles, None
            return angles, mask.resolve(queries, keys, x.device, positions).as_bias(x.dtype)
        ragged = None if cache is None or cache.equal_lengths else positions
        return angles, mask.resolve(queries, keys, x.device, ragged)

    @property
    def attention(self) -> SelfAttention:
        """The first block's self-attention, which has the shape of all."""
        first = self.blocks[0]
        assert isinstance(first, Block)
        return first.attention


def position_ids(x: Tensor) -> Int[Tensor, "1 tokens"]:
    """0, 1, 2 … for the tokens of a batch × tokens × … tensor."""
    return torch.arange(x.shape[1], device=x.device)[None]
