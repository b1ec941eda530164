"""One more token of each row on a CPU, without the modules: there, calling them takes longer than their work.

The same equations on the same state, written flat: rows × width instead of rows × 1 × width, with everything that is
the same at every step settled beforehand. The searches need not know: this is one more model that reads tokens into a
state. What it was not made for (several tokens at once, rows of different lengths, somebody listening at a tap) goes
through the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from heedful.generation.packed import Copies, Product
from heedful.layers.attention import CrossAttention, SelfAttention
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding, look_up
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import Mask
from heedful.layers.positions import Learned, Rotation, Sinusoidal, rotate, rotation
from heedful.layers.residual import Residual
from heedful.layers.state import AttentionState, LayerState
from heedful.layers.taps import Tapped
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import NextToken
from heedful.shapes import Float, Int

Map = Callable[[Tensor], Tensor]
KNOWN = (Stack, Block, SelfAttention, CrossAttention, FeedForward, Residual, Embedding, Learned, Sinusoidal, NextToken)
TORCHS = (nn.ModuleList, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Embedding)


NEVER = object()
"""In place of what was kept, when nothing has been yet."""


def flattened(model: Any, kept: Any = None) -> Any:
    """The model with a flat step, if it is one that has it; else the model itself.

    For one request, since the weights may change after it. `kept` is what was given for the last one, by somebody who
    will keep this for the next: it is given again, unless the model has changed, and takes some trouble to be fast.
    """
    if not can_be_flat(model):
        return model
    if isinstance(kept, Flat) and kept.is_of(model):
        return kept
    return Flat(model, kept=kept is not None)


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


class Flat:
    """A transformer whose next token is read by a flat step."""

    def __init__(self, model: Any, *, kept: bool = False) -> None:
        self.model, self.config, self.table = model, model.config, model.table
        embedding, stack, head = _wholes(model)
        self.embedding, self.begin = embedding, None if embedding.norm is None else norm_of(embedding.norm)
        self.vectors = _target_table(model).weight.detach()
        self.blocks = [FlatBlock(block) for block in stack.blocks]
        self.end = None if stack.norm is None else norm_of(stack.norm)
        self.output = Product(model.output_table if head.weight is None else head.weight, head.bias)
        self.products = [self.output, *(product for block in self.blocks for product in block.products)]
        self.copies = Copies(self.products, kept=kept)
        self.places = Places(embedding.positions, stack.rotary_base, stack.attention.d_k)
        self.tapped = [part for whole in (embedding, stack) for part in whole.modules() if isinstance(part, Tapped)]
        self.mask: tuple[Mask | None, Tensor | None] = (None, None)
        self.weights = _addresses(model)

    def is_of(self, model: Any) -> bool:
        """Whether this is still the model's step: its weights lie where they lay, and are the same where copied."""
        return model is self.model and self.weights == _addresses(model) and not self.copies.outdated()

    def start(self, *given: Any, room: int = 0) -> AttentionState:
        state: AttentionState = self.model.start(*given, room=room)
        return state

    def modules(self) -> Iterator[nn.Module]:
        modules: Iterator[nn.Module] = self.model.modules()
        return modules

    def extend(
        self,
        tokens: Int[Tensor, "rows new"],
        state: AttentionState,
        lengths: Int[Tensor, " rows"] | None = None,
        *,
        last: bool = False,
    ) -> Float[Tensor, "rows asked vocabulary"]:
        """Logits after each of the next tokens (or the last), which the state then remembers."""
        rows, new = tokens.shape
        if new != 1 or rows == 0 or lengths is not None or not self._fits(state):
            logits: Tensor = self.model.extend(tokens, state, lengths, last=last)
            return logits
        self.copies.count(rows)
        where, turn = self.places(state.end)
        x = self._embed(tokens.view(rows), where)
        mask = self._closed(state.memory_mask, x.dtype)
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x = block(x, layer, turn, mask)
        x = x if self.end is None else self.end(x)
        state.advance(1)
        return self.output(x).view(rows, 1, -1)

    def _fits(self, state: AttentionState) -> bool:
        if not state.uniform or state.fixed is not None or any(part.listeners for part in self.tapped):
            return False
        return self.config.positions != "learned" or state.end < self.config.max_length

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
            return look_up(_target_table(self.model), tokens)  # which says what is wrong

    def _closed(self, mask: Mask | None, dtype: torch.dtype) -> Tensor | None:
        """What is not to be read of the sources, as numbers: the same for all layers, and until sources leave."""
        seen, closed = self.mask
        if mask is not seen:
            whole = mask is None or mask.allowed is None or bool(mask.allowed.all())
            closed = None if mask is None or whole else mask.as_bias(dtype).bias
            self.mask = (mask, closed)
        return closed


class FlatBlock:
    """Self-attention, cross-attention if there is any, feed-forward: each around its norm."""

    def __init__(self, block: Block) -> None:
        self.attention, self.cross, self.feed_forward = block.attention, block.cross, block.feed_forward
        self.query_key_value, self.output = map(linear, (block.attention.query_key_value, block.attention.output))
        self.inward, self.outward = map(linear, (block.feed_forward.inward, block.feed_forward.outward))
        self.products = [self.query_key_value, self.output, self.inward, self.outward]
        if block.cross is not None:
            self.cross_query, self.cross_output = map(linear, (block.cross.query, block.cross.output))
            self.products += [self.cross_query, self.cross_output]
        self.pre = block.residual[0].order == "pre"
        self.first, *self.middle, self.last = (norm_of(residual.norm) for residual in block.residual)  # type: ignore[arg-type]

    def __call__(
        self, x: Float[Tensor, "rows width"], layer: LayerState, turn: Rotation | None, mask: Tensor | None
    ) -> Float[Tensor, "rows width"]:
        first, middle, last = self.first, self.middle, self.last
        if self.pre:
            x = x + self._attend(first(x), layer, turn)
            x = x + self._read(middle[0](x), layer, mask) if middle else x
            return x + self._feed(last(x))
        x = first(x + self._attend(x, layer, turn))
        x = middle[0](x + self._read(x, layer, mask)) if middle else x
        return last(x + self._feed(x))

    def _attend(self, x: Tensor, layer: LayerState, turn: Rotation | None) -> Tensor:
        own, rows = self.attention, x.shape[0]
        query, key, value = _split(self.query_key_value(x), own)
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        keys, values = layer.append(key, value)
        heads = scaled_dot_product_attention(query, keys, values, scale=own.scale, enable_gqa=own.groups != own.heads)
        return self.output(heads.reshape(rows, -1))

    def _read(self, x: Tensor, layer: LayerState, mask: Tensor | None) -> Tensor:
        assert self.cross is not None
        assert layer.memory is not None
        own, (keys, values) = self.cross, layer.memory
        if not keys.is_contiguous() or not values.is_contiguous():  # read at every step: each head in one piece
            keys, values = layer.memory = keys.contiguous(), values.contiguous()
        query = self.cross_query(x).view(keys.shape[0], -1, own.heads, own.d_k).transpose(1, 2)  # rows of one source
        heads = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=own.scale, enable_gqa=own.groups != own.heads
        )
        return self.cross_output(heads.transpose(1, 2).reshape(x.shape[0], -1))

    def _feed(self, x: Tensor) -> Tensor:
        inner, activation = self.inward(x), self.feed_forward.activation
        if not self.feed_forward.gated:
            return self.outward(activation(inner))
        gate, inner = inner.chunk(2, dim=1)
        return self.outward(activation(gate) * inner)


class Places:
    """What is added to a token at a position, and the angle heads are turned by: tables, made longer if need be."""

    def __init__(self, positions: Learned | Sinusoidal | None, rotary_base: float | None, d_k: int) -> None:
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
        if isinstance(self.positions, Learned):
            self.vectors = self.positions.table.weight.detach()
        elif self.positions is not None:
            self.vectors = self.positions(every)[0]
        self.angles = rotation(every, self.d_k, base=self.rotary_base) if self.rotary_base else None
        self.reach = reach


def linear(module: Any) -> Product:
    return Product(module.weight, module.bias)


def norm_of(norm: nn.Module) -> Map:
    """A norm as a function."""
    shape, weight, epsilon = norm.normalized_shape, norm.weight.detach(), norm.eps
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, epsilon)
    bias = None if norm.bias is None else norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


def _split(x: Float[Tensor, "rows wide"], own: SelfAttention) -> tuple[Tensor, ...]:
    """Queries, keys and values: rows × heads × 1 × width of a head."""
    rows, heads, groups, d_k, d_v = x.shape[0], own.heads, own.groups, own.d_k, own.d_v
    if heads == groups and d_k == d_v:
        return x.view(rows, 3, heads, 1, d_k).unbind(1)
    q, k, v = x.split_with_sizes(own.sizes, 1)
    return q.view(rows, heads, 1, d_k), k.view(rows, groups, 1, d_k), v.view(rows, groups, 1, d_v)


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
