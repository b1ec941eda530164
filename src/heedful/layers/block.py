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
from heedful.layers.positions import Rotation, alibi, position_angles
from heedful.layers.residual import Residual
from heedful.layers.scores import PositionScore
from heedful.layers.taps import Tapped
from heedful.shapes import Float, Int


class Block(Tapped):
    """Self-attention, then (in an encoder-decoder's decoder) cross-attention, then feed-forward.

    Each has its own residual connection        Vaswani 2017, figure 1 · B4, B5

    Each may be None (B7); `residual(name)` makes the residual connection of the sub-layer of that name.
    """

    points = ("layer_input",)

    def __init__(
        self,
        attention: SelfAttention | None,
        feed_forward: FeedForward | None,
        residual: Callable[[str], Residual],
        cross: CrossAttention | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feed_forward = feed_forward
        sublayers = [name for name in ("attention", "cross", "feed_forward") if getattr(self, name) is not None]
        connections = [residual(name) for name in sublayers]
        for connection, sublayer in zip(connections, sublayers, strict=True):
            connection.alias = sublayer  # its taps are called decoder.0.cross.skip, not decoder.0.residual.1.skip
        self.residual = nn.ModuleList(connections)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask | None = None,
        *,
        rotation: Rotation | None = None,
        positions: Int[Tensor, "#batch tokens"] | None = None,
        cache: LayerKVCache | None = None,
        memory: Float[Tensor, "batch keys width"] | tuple[Tensor, Tensor] | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        residual = iter(self.residual)
        x = self.tap("layer_input", x)
        if self.attention is not None:
            options = {"rotation": rotation, "positions": positions, "cache": cache}
            x = next(residual)(x, lambda x: self.attention(x, mask, **options))
        if self.cross is not None:
            assert memory is not None, "a decoder block with cross-attention reads a memory"
            x = next(residual)(x, lambda x: self.cross(x, memory, memory_mask, positions=positions))
        return x if self.feed_forward is None else next(residual)(x, self.feed_forward)


class Stack(Tapped):
    """f_L ∘ … ∘ f_1, then one last norm where the blocks are pre-norm        B6

    Masks, rotary angles and ALiBi biases are computed here, once for all blocks; the tap `positions` passes the last
    two.
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
        attentions = [module for block in blocks for module in (block.attention, block.cross) if module is not None]
        self.scores_by_position = any(isinstance(attention.score, PositionScore) for attention in attentions)
        self.skip = all(residual.skip for residual in blocks[0].residual)
        self.points = ("positions", "output") if rotary_base or alibi else ("output",)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        mask: Mask = UNMASKED,
        *,
        memory: Float[Tensor, "batch keys width"] | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        first: int = 0,
    ) -> Float[Tensor, "batch tokens width"]:
        """The states after the last block. `first`: the block that x is the input of; those below it are skipped."""
        positions = position_ids(x) if cache is None else cache.positions(x.shape[1])
        angles, resolved = self._angles_and_mask(x, mask, cache, positions)
        inputs = {"rotation": angles, "positions": positions if self.scores_by_position else None}
        if cache is None:
            for block in self.blocks[first:]:
                x = block(x, resolved, **inputs, memory=memory, memory_mask=memory_mask)
        elif resolved is None and dispatch.has_fused_decode_step(x, skip=self.skip):
            x = dispatch.fused_decode_step(self.blocks, x, cache, angles)
        else:
            for block, layer in zip(self.blocks, cache.layers, strict=True):
                x = block(x, resolved, **inputs, cache=layer, memory=layer.memory, memory_mask=cache.memory_mask)
        return self.tap("output", x if self.norm is None else self.norm(x))

    def _angles_and_mask(
        self, x: Tensor, mask: Mask, cache: KVCache | None, positions: Tensor
    ) -> tuple[Rotation | None, Mask | None]:
        """Rotary angles and the resolved mask; no mask if `decode_attention` reads the past and nothing else.

        Only differences of positions matter here, so packed documents need not start from 0.
        """
        queries, attention = x.shape[1], self.attention
        keys = queries if cache is None else cache.key_count(queries)
        if self.alibi and attention is not None:
            mask = mask & Mask(bias=self.tap("positions", alibi(positions, keys, attention.heads)))
        angles = None
        if self.rotary_base and attention is not None:
            angles = Rotation.by(self.tap("positions", position_angles(positions, attention.d_k, self.rotary_base)))
        if cache is not None and cache.static_index is not None:
            if attention is not None and mask.is_causal_only and dispatch.has_decode_attention(attention, x):
                return angles, None
            return angles, mask.resolve(queries, keys, x.device, positions).as_bias(x.dtype)
        ragged = None if cache is None or cache.equal_lengths else positions
        return angles, mask.resolve(queries, keys, x.device, ragged)

    @property
    def attention(self) -> SelfAttention | None:
        """The first self-attention, whose heads have the width of all; None if no block has one."""
        attentions = (block.attention for block in self.blocks if isinstance(block, Block))
        return next((attention for attention in attentions if attention is not None), None)


def position_ids(x: Tensor) -> Int[Tensor, "1 tokens"]:
    """0, 1, 2 … for the tokens of a batch × tokens × … tensor."""
    return torch.arange(x.shape[1], device=x.device)[None]
