"""One decode step of a transformer on a CPU without calling its modules, whose call overhead exceeds their work.

The equations and the KV cache are the model's; activations are rows × width instead of rows × 1 × width, and values
that are the same at every step are computed once. Prefill, and steps with an active tap, call the modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import local
from typing import Any

import torch
from torch import Tensor

from heedful.generation.backends.cpu_block import CacheRows, CpuBlock, norm_function
from heedful.generation.backends.cpu_encoder import CpuEncoder
from heedful.generation.backends.cpu_linear import CpuLinear, PackedWeights
from heedful.layers.block import Stack
from heedful.layers.embedding import Embedding, embedding_lookup
from heedful.layers.kv_cache import KVCache
from heedful.layers.masks import Mask
from heedful.layers.positions import LearnedPositions, Rotation, SinusoidalPositions, rotation
from heedful.layers.taps import is_observed
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import NextTokenHead
from heedful.shapes import Float, Int


class CpuDecoder:
    """A transformer whose decode step calls no modules: a drop-in `DecoderModel` for the search."""

    def __init__(self, model: Decoder | EncoderDecoder, *, keep_weights: bool = False) -> None:
        self.model, self.config, self.device = model, model.config, model.device
        self.encoder = CpuEncoder(model, keep_weights=keep_weights) if isinstance(model, EncoderDecoder) else None
        embedding, stack, head = decoder_modules(model)
        self.embedding = embedding
        self.embedding_norm = None if embedding.norm is None else norm_function(embedding.norm)
        self.vectors = model.decoder_table.weight.detach()
        self.blocks = [CpuBlock(block) for block in stack.blocks]
        self.final_norm = None if stack.norm is None else norm_function(stack.norm)
        self.output = CpuLinear(model.decoder_table.weight if head.weight is None else head.weight, head.bias)
        linears = [self.output, *(linear for block in self.blocks for linear in block.linears)]
        self.packed_weights = PackedWeights(linears, keep=keep_weights)
        assert stack.attention is not None, "a model without attention is decoded by torch"
        self.positions = PositionTables(embedding.positions, stack.rotary_base, stack.attention.d_k)
        self.mask_cache = local()  # threads share the decoder, not their batches
        self.weight_addresses = _weight_addresses(model)

    def is_current(self) -> bool:
        """Whether the model's weights are still those this decoder was built from."""
        packed = [self.packed_weights, *([self.encoder.packed_weights] if self.encoder else [])]
        return self.weight_addresses == _weight_addresses(self.model) and not any(part.is_outdated() for part in packed)

    def start(self, *arguments: Any, capacity: int = 0) -> KVCache:
        """The model's `start`: an empty KV cache, or one with the encoded sources."""
        if self.encoder is None or is_observed(self.model):
            state: KVCache = self.model.start(*arguments, capacity=capacity)
            return state
        return self.encoder.start(*arguments, capacity=capacity)

    def extend(
        self, tokens: Int[Tensor, "rows new"], state: KVCache, *, last: bool = False
    ) -> Float[Tensor, "rows scored vocabulary"]:
        """Logits after each of the next tokens (or the last), which are appended to the KV cache."""
        rows, new = tokens.shape
        if new != 1 or rows == 0 or not self.supports(state):
            logits: Tensor = self.model.extend(tokens, state, last=last)
            return logits
        return self.decode_one_token(tokens.view(rows), state).view(rows, 1, -1)

    def decode_one_token(self, tokens: Int[Tensor, " rows"], *caches: KVCache) -> Float[Tensor, "rows vocabulary"]:
        """Logits after one more token per row; the rows of several caches are concatenated."""
        self.packed_weights.count_step(len(tokens))
        position, rotary = self.positions(*_next_positions(caches))
        x = self._embed(tokens, position)
        parts = [self._cache_rows(cache, x.dtype) for cache in caches]
        for block, *layers in zip(self.blocks, *(cache.layers for cache in caches), strict=True):
            x = block(x, layers, parts, rotary)
        x = x if self.final_norm is None else self.final_norm(x)
        for cache in caches:
            cache.advance(1)
        return self.output(x)

    def supports(self, cache: KVCache) -> bool:
        """Whether the next token of this cache can be decoded without the modules."""
        if cache.static_index is not None or is_observed(self.model):
            return False
        return not self.config.has_position_table or cache.longest < int(self.config.max_length)

    def _cache_rows(self, cache: KVCache, dtype: torch.dtype) -> CacheRows:
        past_bias = None
        if not cache.equal_lengths:
            beyond = torch.arange(cache.longest + 1) > cache.lengths[:, None]
            past_bias = torch.zeros(beyond.shape, dtype=dtype).masked_fill_(beyond, -torch.inf)[:, None, None]
        return CacheRows(len(cache.lengths), past_bias, self._memory_bias(cache.memory_mask, dtype))

    def _embed(self, tokens: Int[Tensor, " rows"], position: Float[Tensor, "#rows width"] | None) -> Tensor:
        x = self._look_up(tokens)
        x = x * self.embedding.scale if self.embedding.scale != 1.0 else x
        if position is not None:
            position = position.to(x.dtype)
            added = self.embedding.combine == "add"
            x = x + position if added else torch.cat([x, position.expand(x.shape[0], -1)], dim=1)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _look_up(self, tokens: Int[Tensor, " rows"]) -> Tensor:
        try:
            return torch.embedding(self.vectors, tokens)
        except IndexError:
            return embedding_lookup(self.model.decoder_table, tokens)  # raises an error that names the token

    def _memory_bias(self, mask: Mask | None, dtype: torch.dtype) -> Tensor | None:
        """The padding mask of the sources as an additive bias, kept while the mask is the same object."""
        if mask is not None and mask.bias is not None:
            return mask.bias.to(dtype)
        last_mask, bias = getattr(self.mask_cache, "last", (None, None))
        if mask is not last_mask:
            unmasked = mask is None or mask.allowed is None or bool(mask.allowed.all())
            bias = None if mask is None or unmasked else mask.as_bias(dtype).bias
            self.mask_cache.last = (mask, bias)
        return bias


class PositionTables:
    """Position embeddings and rotary angles by position, in tables that grow on demand."""

    def __init__(
        self, positions: LearnedPositions | SinusoidalPositions | None, rotary_base: float | None, d_k: int
    ) -> None:
        self.positions, self.rotary_base, self.d_k = positions, rotary_base, d_k
        self.length = 0
        self.vectors: Tensor | None = None
        self.angles: Rotation | None = None

    def __call__(
        self, longest: int, positions: Int[Tensor, " rows"] | None
    ) -> tuple[Float[Tensor, "#rows width"] | None, Rotation | None]:
        """The vectors and angles of these positions, at most `longest`; None: every row is at position `longest`."""
        if longest >= self.length:
            self._grow(2 * longest + 64)
        chosen = slice(longest, longest + 1) if positions is None else positions
        vectors = None if self.vectors is None else self.vectors[chosen]
        if self.angles is None:
            return vectors, None
        cosine, sine = (table[0, 0][chosen][:, None, None] for table in self.angles)
        return vectors, Rotation(cosine, sine)

    def _grow(self, length: int) -> None:
        indices = torch.arange(length)[None]
        if isinstance(self.positions, LearnedPositions):
            self.vectors = self.positions.table.weight.detach()
        elif self.positions is not None:
            self.vectors = self.positions(indices)[0]
        self.angles = rotation(indices, self.d_k, base=self.rotary_base) if self.rotary_base else None
        self.length = length


def _next_positions(caches: Sequence[KVCache]) -> tuple[int, Int[Tensor, " rows"] | None]:
    """The longest row's next position, and every row's where they differ."""
    longest = max(cache.longest for cache in caches)
    if all(cache.equal_lengths and cache.longest == longest for cache in caches):
        return longest, None
    return longest, torch.cat([cache.lengths for cache in caches])


def decoder_modules(model: Decoder | EncoderDecoder) -> tuple[Embedding, Stack, NextTokenHead]:
    """The modules that a decode step passes through."""
    head: Any = model.heads.next_token
    return model.target if isinstance(model, EncoderDecoder) else model.embedding, model.decoder, head


def encoder_modules(model: Decoder | EncoderDecoder) -> tuple[Embedding, Stack] | tuple[()]:
    """The modules that a source passes through."""
    return (model.source, model.encoder) if isinstance(model, EncoderDecoder) else ()


def _weight_addresses(model: Decoder | EncoderDecoder) -> tuple[int, ...]:
    parts = (model.table, *decoder_modules(model), model.decoder_table, *encoder_modules(model))
    return tuple(weight.data_ptr() for part in parts for weight in part.parameters())
