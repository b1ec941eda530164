"""Decoding state: what a model remembers of the tokens it has read. It is an argument, never hidden in a module.

Generation owns a state, hands it to `model.extend(tokens, state)` and reorders it as beams come and go.
Recurrent and attentive models meet one protocol, so each search is written once for all families (G1).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.layers.masks import Mask
from heedful.shapes import Float, Int


@runtime_checkable
class DecoderState(Protocol):
    """What every search may rely on."""

    lengths: Int[Tensor, " batch"]
    """Tokens read so far, sequence by sequence."""

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        """Keep these rows, in this order: drop finished sequences, copy surviving beams.

        From now on each `together` rows in a row read one source. Sources may leave, but keep their order.
        """


class StaticCacheIndex(NamedTuple):
    """A step whose shapes never change, so that it can be recorded: the device alone knows how far rows have got.

    Keys and values have their places set aside; those not yet written are closed. Rows that are reordered do not move:
    they point to where their past was written.
    """

    position: Int[Tensor, " 1"]
    """Where every row's next token goes."""
    cache_rows: Int[Tensor, "batch places"]
    """For each row and place, the row of keys and values that holds it."""
    reordered: bool = True
    """Whether any row's past is held by another."""

    def append(
        self, layer: LayerKVCache, key: Float[Tensor, "batch groups 1 d_k"], value: Float[Tensor, "batch groups 1 d_v"]
    ) -> tuple[Float[Tensor, "batch groups places d_k"], Float[Tensor, "batch groups places d_v"]]:
        """Write the new token, each row at its own; gather what each has read."""
        assert layer.keys is not None
        assert layer.values is not None
        layer.keys[: len(key)].index_copy_(2, self.position, key)
        layer.values[: len(value)].index_copy_(2, self.position, value)
        places = torch.arange(self.cache_rows.shape[1], device=key.device)
        return layer.keys[self.cache_rows, :, places].transpose(1, 2), layer.values[self.cache_rows, :, places].transpose(1, 2)


class LayerKVCache:
    """The keys and values of one attention layer, in room set aside beforehand."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None
        """Keys and values of the source, for cross-attention: projected once, read at every step, shared by beams."""

    def append(
        self, key: Float[Tensor, "batch groups tokens d_k"], value: Float[Tensor, "batch groups tokens d_v"]
    ) -> tuple[Float[Tensor, "batch groups keys d_k"], Float[Tensor, "batch groups keys d_v"]]:
        """Write the new tokens after those already read; give back everything up to the longest row."""
        if self.cache.static_index is not None:
            return self.cache.static_index.append(self, key, value)
        end = self.cache.longest + key.shape[2]
        self.keys = self._with_room(self.keys, key, end)
        self.values = self._with_room(self.values, value, end)
        if self.cache.equal_lengths:
            self.keys.narrow(2, self.cache.longest, key.shape[2]).copy_(key)
            self.values.narrow(2, self.cache.longest, key.shape[2]).copy_(value)
        else:  # rows of different lengths: each writes at its own place
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            places = self.cache.positions(key.shape[2])
            self.keys[rows, :, places] = key.transpose(1, 2)
            self.values[rows, :, places] = value.transpose(1, 2)
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def reorder(self, rows: Int[Tensor, " chosen"], sources: Int[Tensor, " kept"] | None) -> None:
        self.keys = None if self.keys is None else self.keys[rows]
        self.values = None if self.values is None else self.values[rows]
        if self.memory is not None and sources is not None:
            self.memory = self.memory[0][sources], self.memory[1][sources]

    def _with_room(self, held: Tensor | None, new: Tensor, needed: int) -> Tensor:
        if held is not None and held.shape[2] >= needed:
            return held
        batch, groups, _, width = new.shape
        # Doubling keeps the copying linear when nobody said how long the text will be.
        room = max(needed, self.cache.capacity, 2 * held.shape[2] if held is not None else 0)
        grown = new.new_zeros(batch, groups, room, width)
        if held is not None:
            grown[:, :, : held.shape[2]] = held
        return grown


class KVCache:
    """Keys and values for every layer of a decoder, and where each sequence stands.

    `room` is how many tokens to set space aside for; a state grows past it by itself.
    """

    def __init__(self, batch: int, layers: int, *, device: torch.device, capacity: int = 0) -> None:
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self.layers = [LayerKVCache(self) for _ in range(layers)]
        self.memory_mask: Mask | None = None
        self.capacity = capacity
        self.rows_per_source = 1
        """Rows that read one source."""
        self.longest = 0
        """The longest row, known without asking the device."""
        self.static_index: StaticCacheIndex | None = None
        """How far rows have got, if only the device is to know."""
        self.equal_lengths = True
        """Whether all rows are known to be equally long."""

    def positions(self, tokens: int) -> Int[Tensor, "#batch tokens"]:
        """Where the next `tokens` tokens of each row stand."""
        if self.static_index is not None:
            return self.static_index.position[None]
        steps = torch.arange(tokens, device=self.lengths.device)
        return steps[None] + self.longest if self.equal_lengths else self.lengths[:, None] + steps

    def key_count(self, tokens: int) -> int:
        """How many places the next `tokens` tokens look at, their own included."""
        return self.longest + tokens if self.static_index is None else self.static_index.cache_rows.shape[1]

    def advance(self, tokens: int, lengths: Int[Tensor, " batch"] | None = None) -> None:
        """Count what was appended: `tokens` each, or only the first `lengths[b]` of row b.

        Padding beyond a row's length stays unread: causal masks hide it until it is overwritten.
        """
        self.lengths = self.lengths + (tokens if lengths is None else lengths)
        self.equal_lengths = self.equal_lengths and lengths is None
        self.longest += tokens

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        sources = kept_sources(rows, len(self.lengths), self.rows_per_source, rows_per_source)
        self.lengths, self.rows_per_source = self.lengths[rows], rows_per_source
        for layer in self.layers:
            layer.reorder(rows, sources)
        if sources is not None and self.memory_mask is not None and self.memory_mask.allowed is not None:
            self.memory_mask = Mask(allowed=self.memory_mask.allowed[sources])


def kept_sources(rows: Int[Tensor, " chosen"], number: int, before: int, after: int) -> Int[Tensor, " kept"] | None:
    """Which sources these of `number` rows read, when they were `before` rows a source and are `after`; None: all."""
    if before == after > 1 and len(rows) == number:
        return None
    return rows[::after] // before
