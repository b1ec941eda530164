"""KV cache: keys and values of the tokens decoded so far, passed as an argument and never stored in a module.

Generation owns the cache, hands it to `model.extend(tokens, cache)` and reorders its rows as beams are replaced.
`KVCache` and the recurrent models' hidden state meet one protocol, so every search serves all families (G1).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.layers.masks import Mask
from heedful.shapes import Float, Int


@runtime_checkable
class DecoderState(Protocol):
    """Decoding state of any model family: a `KVCache` or a recurrent hidden state."""

    lengths: Int[Tensor, " batch"]
    """Tokens read so far in each row."""

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        """Keep these rows, in this order: drop finished sequences, copy surviving beams.

        Afterwards each `rows_per_source` consecutive rows share one source. Sources may be dropped, not reordered.
        """


class StaticCacheIndex(NamedTuple):
    """Indices into a static KV cache, kept on the device so that a CUDA graph can capture the step.

    Keys and values have a fixed number of positions, masked until they are written. Reordering moves no keys: each row
    points to the cache rows in which its past was written.
    """

    position: Int[Tensor, " 1"]
    """Position of every row's next token."""
    cache_rows: Int[Tensor, "batch positions"]
    """For each row and position, the cache row that holds its key and value."""
    reordered: bool = True
    """Whether any row's past is stored in another cache row."""

    def append(
        self, layer: LayerKVCache, key: Float[Tensor, "batch groups 1 d_k"], value: Float[Tensor, "batch groups 1 d_v"]
    ) -> tuple[Float[Tensor, "batch groups positions d_k"], Float[Tensor, "batch groups positions d_v"]]:
        """Write the new token's key and value; gather those of all positions for each row."""
        assert layer.keys is not None
        assert layer.values is not None
        layer.keys[: len(key)].index_copy_(2, self.position, key)
        layer.values[: len(value)].index_copy_(2, self.position, value)
        rows, positions = self.cache_rows, torch.arange(self.cache_rows.shape[1], device=key.device)
        return layer.keys[rows, :, positions].transpose(1, 2), layer.values[rows, :, positions].transpose(1, 2)


class LayerKVCache:
    """The keys and values of one attention layer, in preallocated memory."""

    def __init__(self, parent: KVCache) -> None:
        self.parent = parent
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None
        """Cross-attention keys and values of the source: projected once, read at every step, shared by beams."""

    def append(
        self, key: Float[Tensor, "batch groups tokens d_k"], value: Float[Tensor, "batch groups tokens d_v"]
    ) -> tuple[Float[Tensor, "batch groups keys d_k"], Float[Tensor, "batch groups keys d_v"]]:
        """Write the new tokens' keys and values; return all of them up to the longest row."""
        parent, tokens = self.parent, key.shape[2]
        if parent.static_index is not None:
            return parent.static_index.append(self, key, value)
        end = parent.longest + tokens
        self.keys = self._grow(self.keys, key, end)
        self.values = self._grow(self.values, value, end)
        if parent.equal_lengths:
            self.keys.narrow(2, parent.longest, tokens).copy_(key)
            self.values.narrow(2, parent.longest, tokens).copy_(value)
        else:  # each row writes at its own position
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            positions = parent.positions(tokens)
            self.keys[rows, :, positions] = key.transpose(1, 2)
            self.values[rows, :, positions] = value.transpose(1, 2)
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def contiguous_memory(self) -> tuple[Tensor, Tensor]:
        """Cross-attention keys and values, which every step reads, with each head in one piece."""
        assert self.memory is not None
        if not all(part.is_contiguous() for part in self.memory):
            keys, values = self.memory
            self.memory = keys.contiguous(), values.contiguous()
        return self.memory

    def reorder(self, rows: Int[Tensor, " chosen"], sources: Int[Tensor, " kept"] | None) -> None:
        self.keys = None if self.keys is None else self.keys[rows]
        self.values = None if self.values is None else self.values[rows]
        if self.memory is not None and sources is not None:
            self.memory = self.memory[0][sources], self.memory[1][sources]

    def _grow(self, stored: Tensor | None, new: Tensor, needed: int) -> Tensor:
        if stored is not None and stored.shape[2] >= needed:
            return stored
        batch, groups, _, width = new.shape
        # Doubling keeps the copying linear where the length is not known beforehand.
        capacity = max(needed, self.parent.capacity, 2 * stored.shape[2] if stored is not None else 0)
        grown = new.new_zeros(batch, groups, capacity, width)
        if stored is not None:
            grown[:, :, : stored.shape[2]] = stored
        return grown


class KVCache:
    """Keys and values of every layer of a decoder, and the length of each row.

    `capacity`: tokens to preallocate for; the cache grows past it when needed.
    """

    def __init__(self, batch: int, layers: int, *, device: torch.device, capacity: int = 0) -> None:
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self.layers = [LayerKVCache(self) for _ in range(layers)]
        self.texts: Tensor | None = None
        """For each row the index of its text in the request, for taps; None while nothing listens."""
        self.memory_mask: Mask | None = None
        self.capacity = capacity
        self.rows_per_source = 1
        """Consecutive rows (beams) that share one source."""
        self.longest = 0
        """Length of the longest row, known without a device synchronization."""
        self.static_index: StaticCacheIndex | None = None
        """Set for a static cache, whose lengths are stored on the device only."""
        self.equal_lengths = True
        """Whether all rows are known to have the same length."""

    def positions(self, tokens: int) -> Int[Tensor, "#batch tokens"]:
        """Positions of the next `tokens` tokens of each row."""
        if self.static_index is not None:
            return self.static_index.position[None]
        steps = torch.arange(tokens, device=self.lengths.device)
        return steps[None] + self.longest if self.equal_lengths else self.lengths[:, None] + steps

    def key_count(self, tokens: int) -> int:
        """Number of keys the next `tokens` tokens attend to, their own included."""
        return self.longest + tokens if self.static_index is None else self.static_index.cache_rows.shape[1]

    def advance(self, tokens: int, lengths: Int[Tensor, " batch"] | None = None) -> None:
        """Count appended tokens: `tokens` in every row, or only the first `lengths[b]` of row b.

        Padding beyond a row's length is never attended to: the causal mask hides it until it is overwritten.
        """
        self.lengths = self.lengths + (tokens if lengths is None else lengths)
        self.equal_lengths = self.equal_lengths and lengths is None
        self.longest += tokens

    def rewind(self) -> None:
        """Discard all tokens but keep the encoded source: the next tokens start at position 0."""
        self.lengths = torch.zeros_like(self.lengths)
        self.longest, self.equal_lengths = 0, True

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        sources = kept_sources(rows, len(self.lengths), self.rows_per_source, rows_per_source)
        self.lengths, self.rows_per_source = self.lengths[rows], rows_per_source
        self.texts = None if self.texts is None else self.texts[rows]
        for layer in self.layers:
            layer.reorder(rows, sources)
        if sources is not None and self.memory_mask is not None and self.memory_mask.allowed is not None:
            self.memory_mask = Mask(allowed=self.memory_mask.allowed[sources])


def kept_sources(rows: Int[Tensor, " chosen"], number: int, before: int, after: int) -> Int[Tensor, " kept"] | None:
    """Sources still used when `rows` of `number` rows are kept, with `before` and then `after` rows a source.

    None if all sources are kept.
    """
    if before == after > 1 and len(rows) == number:
        return None
    return rows[::after] // before
