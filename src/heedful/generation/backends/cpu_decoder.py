"""One decode step of a transformer on a CPU without calling its modules, whose call overhead exceeds their work.

The equations and the KV cache are the model's; activations are rows × width instead of rows × 1 × width, and whatever
is the same at every step is prepared once. A prefill, rows of different lengths and steps with a tap listening go
through the modules.
"""

from __future__ import annotations

from threading import local
from typing import Any

import torch
from torch import Tensor

from heedful.generation.backends.cpu_block import CpuBlock, norm_function
from heedful.generation.backends.cpu_linear import CpuLinear, PackedWeights
from heedful.layers.block import Stack
from heedful.layers.embedding import Embedding, embedding_lookup
from heedful.layers.kv_cache import KVCache
from heedful.layers.masks import Mask
from heedful.layers.positions import LearnedPositions, Rotation, SinusoidalPositions, rotation
from heedful.layers.taps import Tapped
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import NextToken
from heedful.shapes import Float, Int


class CpuDecoder:
    """A transformer whose decode step calls no modules: a drop-in `DecoderModel` for the search."""

    def __init__(self, model: Decoder | EncoderDecoder, *, keep_weights: bool = False) -> None:
        self.model, self.config, self.device, self.start = model, model.config, model.device, model.start
        embedding, stack, head = decoder_modules(model)
        self.embedding = embedding
        self.embedding_norm = None if embedding.norm is None else norm_function(embedding.norm)
        self.vectors = model.decoder_table.weight.detach()
        self.blocks = [CpuBlock(block) for block in stack.blocks]
        self.final_norm = None if stack.norm is None else norm_function(stack.norm)
        self.output = CpuLinear(model.decoder_table.weight if head.weight is None else head.weight, head.bias)
        linears = [self.output, *(linear for block in self.blocks for linear in block.linears)]
        self.packed_weights = PackedWeights(linears, keep=keep_weights)
        self.positions = PositionTables(embedding.positions, stack.rotary_base, stack.attention.d_k)
        self.tapped = [part for whole in (embedding, stack) for part in whole.modules() if isinstance(part, Tapped)]
        self.mask_cache = local()  # threads share the decoder, not their batches
        self.weight_addresses = _weight_addresses(model)

    def is_current(self) -> bool:
        """Whether the model's weights are still those this decoder was built from."""
        return self.weight_addresses == _weight_addresses(self.model) and not self.packed_weights.is_outdated()

    def extend(
        self, tokens: Int[Tensor, "rows new"], state: KVCache, *, last: bool = False
    ) -> Float[Tensor, "rows asked vocabulary"]:
        """Logits after each of the next tokens (or the last), which are appended to the KV cache."""
        rows, new = tokens.shape
        if new != 1 or rows == 0 or not self._supports(state):
            logits: Tensor = self.model.extend(tokens, state, last=last)
            return logits
        return self.decode_one_token(tokens.view(rows), state).view(rows, 1, -1)

    def decode_one_token(self, tokens: Int[Tensor, " rows"], cache: KVCache) -> Float[Tensor, "rows vocabulary"]:
        """Logits after one more token per row."""
        self.packed_weights.count_step(len(tokens))
        position, rotary = self.positions(cache.longest)
        x = self._embed(tokens, position)
        mask = self._memory_bias(cache.memory_mask, x.dtype)
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x = block(x, layer, rotary, mask)
        x = x if self.final_norm is None else self.final_norm(x)
        cache.advance(1)
        return self.output(x)

    def _supports(self, cache: KVCache) -> bool:
        if not cache.equal_lengths or cache.static_index is not None or any(part.listeners for part in self.tapped):
            return False
        return self.config.positions != "learned" or cache.longest < int(self.config.max_length)

    def _embed(self, tokens: Int[Tensor, " rows"], position: Float[Tensor, "1 width"] | None) -> Tensor:
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

    def __call__(self, position: int) -> tuple[Float[Tensor, "1 width"] | None, Rotation | None]:
        if position >= self.length:
            self._grow(2 * position + 64)
        vector = None if self.vectors is None else self.vectors[position : position + 1]
        if self.angles is None:
            return vector, None
        cosine, sine = (table[..., position : position + 1, :] for table in self.angles)
        return vector, Rotation(cosine, sine)

    def _grow(self, length: int) -> None:
        indices = torch.arange(length)[None]
        if isinstance(self.positions, LearnedPositions):
            self.vectors = self.positions.table.weight.detach()
        elif self.positions is not None:
            self.vectors = self.positions(indices)[0]
        self.angles = rotation(indices, self.d_k, base=self.rotary_base) if self.rotary_base else None
        self.length = length


def decoder_modules(model: Decoder | EncoderDecoder) -> tuple[Embedding, Stack, NextToken]:
    """The modules that a decode step passes through."""
    head: Any = model.heads.next_token
    return model.target if isinstance(model, EncoderDecoder) else model.embedding, model.decoder, head


def _weight_addresses(model: Decoder | EncoderDecoder) -> tuple[int, ...]:
    parts = (model.table, *decoder_modules(model), model.decoder_table)
    return tuple(weight.data_ptr() for part in parts for weight in part.parameters())
