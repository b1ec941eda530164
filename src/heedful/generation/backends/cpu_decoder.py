"""One more token of each row on a CPU, without the modules: there, calling them takes longer than their work.

The same equations on the same state, written flat: rows × width instead of rows × 1 × width, with everything that is
the same at every step settled beforehand. The searches need not know: this is one more model that reads tokens into a
state. What it was not made for (several tokens at once, rows of different lengths, somebody listening at a tap) goes
through the modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import local
from typing import Any

import torch
from torch import Tensor, nn

from heedful.generation.backends.cpu_block import CpuBlock, norm_function
from heedful.generation.backends.cpu_linear import PackedWeights, CpuLinear
from heedful.layers.attention import CrossAttention, SelfAttention
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding, embedding_lookup
from heedful.layers.feed_forward import FeedForward
from heedful.layers.kv_cache import KVCache
from heedful.layers.masks import Mask
from heedful.layers.positions import LearnedPositions, Rotation, SinusoidalPositions, rotation
from heedful.layers.residual import Residual
from heedful.layers.taps import Tapped
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import NextToken
from heedful.shapes import Float, Int

KNOWN = (Stack, Block, SelfAttention, CrossAttention, FeedForward, Residual, Embedding, LearnedPositions, SinusoidalPositions, NextToken)
TORCHS = (nn.ModuleList, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Embedding)


def flattened(model: Any) -> Any:
    """The model with a flat step, if it can have one, else the model itself: for one request, whatever comes then."""
    return CpuDecoder(model) if can_be_flat(model) else model


def lasting(model: Any, last: Any = None) -> Any:
    """The same for somebody who keeps it and brings the `last` one along: it is given back, unless the model changed.

    It takes some trouble to be fast: see `Copies`.
    """
    if not can_be_flat(model):
        return model
    return last if isinstance(last, CpuDecoder) and last.is_of(model) else CpuDecoder(model, kept=True)


def can_be_flat(model: Any) -> bool:
    """Whether the equations below are this model's: nothing in it is of another kind, hooked, or being trained."""
    if type(model) not in (Decoder, EncoderDecoder) or "extend" in vars(model):
        return False
    if model.table.weight.device.type != "cpu":
        return False
    config = model.config
    if config.window is not None or config.positions == "alibi" or config.segments or not config.skip:
        return False
    if config.score not in ("dot", "scaled_dot") or not config.softmax:
        return False
    parts = [part for whole in _wholes(model) for part in whole.modules()]
    return all(type(part) in (*KNOWN, *TORCHS) and not part.training and not _hooked(part) for part in parts)


class CpuDecoder:
    """A transformer whose next token is read by a flat step."""

    def __init__(self, model: Any, *, kept: bool = False) -> None:
        self.model, self.config, self.table = model, model.config, model.table
        embedding, stack, head = _wholes(model)
        self.embedding, self.begin = embedding, None if embedding.norm is None else norm_function(embedding.norm)
        self.vectors = _target_table(model).weight.detach()
        self.blocks = [CpuBlock(block) for block in stack.blocks]
        self.end = None if stack.norm is None else norm_function(stack.norm)
        self.output = CpuLinear(model.output_table if head.weight is None else head.weight, head.bias)
        self.products = [self.output, *(product for block in self.blocks for product in block.products)]
        self.copies = PackedWeights(self.products, kept=kept)
        self.places = PositionTables(embedding.positions, stack.rotary_base, stack.attention.d_k)
        self.tapped = [part for whole in (embedding, stack) for part in whole.modules() if isinstance(part, Tapped)]
        self.mask = local()  # threads may share this model, but not their batches
        self.weights = _addresses(model)

    def is_of(self, model: Any) -> bool:
        """Whether this is still the model's step: its weights lie where they lay, and are the same where copied."""
        return model is self.model and self.weights == _addresses(model) and not self.copies.is_outdated()

    def start(self, *given: Any, capacity: int = 0) -> KVCache:
        state: KVCache = self.model.start(*given, capacity=capacity)
        return state

    def modules(self) -> Iterator[nn.Module]:
        modules: Iterator[nn.Module] = self.model.modules()
        return modules

    def extend(
        self,
        tokens: Int[Tensor, "rows new"],
        state: KVCache,
        lengths: Int[Tensor, " rows"] | None = None,
        *,
        last: bool = False,
    ) -> Float[Tensor, "rows asked vocabulary"]:
        """Logits after each of the next tokens (or the last), which the state then remembers."""
        rows, new = tokens.shape
        if new != 1 or rows == 0 or lengths is not None or not self._fits(state):
            logits: Tensor = self.model.extend(tokens, state, lengths, last=last)
            return logits
        self.copies.count_step(rows)
        where, turn = self.places(state.longest)
        x = self._embed(tokens.view(rows), where)
        mask = self._closed(state.memory_mask, x.dtype)
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x = block(x, layer, turn, mask)
        x = x if self.end is None else self.end(x)
        state.advance(1)
        return self.output(x).view(rows, 1, -1)

    def _fits(self, state: KVCache) -> bool:
        if not state.equal_lengths or state.static_index is not None or any(part.listeners for part in self.tapped):
            return False
        return self.config.positions != "learned" or state.longest < int(self.config.max_length)

    def _embed(self, tokens: Int[Tensor, " rows"], where: Float[Tensor, "1 place"] | None) -> Tensor:
        x = self._look_up(tokens)
        x = x * self.embedding.scale if self.embedding.scale != 1.0 else x
        if where is not None:
            where = where.to(x.dtype)
            x = x + where if self.embedding.combine == "add" else torch.cat([x, where.expand(x.shape[0], -1)], dim=1)
        return x if self.begin is None else self.begin(x)

    def _look_up(self, tokens: Int[Tensor, " rows"]) -> Tensor:
        try:
            return torch.embedding(self.vectors, tokens)
        except IndexError:
            return embedding_lookup(_target_table(self.model), tokens)  # which says what is wrong

    def _closed(self, mask: Mask | None, dtype: torch.dtype) -> Tensor | None:
        """What is not to be read of the sources, as numbers: the same for all layers, and until sources leave."""
        seen, closed = getattr(self.mask, "last", (None, None))
        if mask is not seen:
            whole = mask is None or mask.allowed is None or bool(mask.allowed.all())
            closed = None if mask is None or whole else mask.as_bias(dtype).bias
            self.mask.last = (mask, closed)
        return closed


class PositionTables:
    """What is added to a token at a position, and the angle heads are turned by: tables, made longer if need be."""

    def __init__(self, positions: LearnedPositions | SinusoidalPositions | None, rotary_base: float | None, d_k: int) -> None:
        self.positions, self.rotary_base, self.d_k = positions, rotary_base, d_k
        self.reach = 0
        self.vectors: Tensor | None = None
        self.angles: Rotation | None = None

    def __call__(self, place: int) -> tuple[Float[Tensor, "1 width"] | None, Rotation | None]:
        if place >= self.reach:
            self._make(2 * place + 64)
        vector = None if self.vectors is None else self.vectors[place : place + 1]
        if self.angles is None:
            return vector, None
        cosine, sine = (table[..., place : place + 1, :] for table in self.angles)
        return vector, Rotation(cosine, sine)

    def _make(self, reach: int) -> None:
        every = torch.arange(reach)[None]
        if isinstance(self.positions, LearnedPositions):
            self.vectors = self.positions.table.weight.detach()
        elif self.positions is not None:
            self.vectors = self.positions(every)[0]
        self.angles = rotation(every, self.d_k, base=self.rotary_base) if self.rotary_base else None
        self.reach = reach


def _wholes(model: Any) -> tuple[Embedding, Stack, NextToken]:
    """What the next token passes through."""
    return model.target if isinstance(model, EncoderDecoder) else model.embedding, model.decoder, model.heads.next_token


def _target_table(model: Any) -> nn.Embedding:
    own: nn.Embedding | None = getattr(model, "target_table", None)
    return model.table if own is None else own


def _addresses(model: Any) -> tuple[int, ...]:
    parts = (model.table, *_wholes(model), _target_table(model))
    return tuple(weight.data_ptr() for part in parts for weight in part.parameters())


def _hooked(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)
