"""Decoding state: what a model remembers of the tokens it has read. It is an argument, never hidden in a module.

Generation owns a state, hands it to `model.extend(tokens, state)` and reorders it as beams come and go.
Recurrent and attentive models meet one protocol, so each search is written once for all families (G1).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.layers.masks import Mask
from heedful.shapes import Float, Int


@runtime_checkable
class State(Protocol):
    """What every search may rely on."""

    lengths: Int[Tensor, " batch"]
    """Tokens read so far, sequence by sequence."""

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Keep these rows, in this order: drop finished sequences, copy surviving beams."""


class LayerState:
    """The keys and values of one attention layer, in room set aside beforehand."""

    def __init__(self, clock: AttentionState) -> None:
        self.clock = clock
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None
        """Keys and values of the source, for cross-attention: projected once, read at every step."""

    def append(
        self, key: Float[Tensor, "batch groups tokens d_k"], value: Float[Tensor, "batch groups tokens d_v"]
    ) -> tuple[Float[Tensor, "batch groups keys d_k"], Float[Tensor, "batch groups keys d_v"]]:
        """Write the new tokens after those already read; give back everything up to the longest row."""
        end = self.clock.end + key.shape[2]
        self.keys = self._with_room(self.keys, key, end)
        self.values = self._with_room(self.values, value, end)
        if self.clock.uniform:
            self.keys[:, :, self.clock.end : end] = key
            self.values[:, :, self.clock.end : end] = value
        else:  # rows of different lengths: each writes at its own place
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            places = self.clock.positions(key.shape[2])
            self.keys[rows, :, places] = key.transpose(1, 2)
            self.values[rows, :, places] = value.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        self.keys = None if self.keys is None else self.keys[rows]
        self.values = None if self.values is None else self.values[rows]
        self.memory = None if self.memory is None else (self.memory[0][rows], self.memory[1][rows])

    def _with_room(self, held: Tensor | None, new: Tensor, needed: int) -> Tensor:
        if held is not None and held.shape[2] >= needed:
            return held
        batch, groups, _, width = new.shape
        # Doubling keeps the copying linear when nobody said how long the text will be.
        room = max(needed, self.clock.room, 2 * held.shape[2] if held is not None else 0)
        grown = new.new_zeros(batch, groups, room, width)
        if held is not None:
            grown[:, :, : held.shape[2]] = held
        return grown


class AttentionState:
    """Keys and values for every layer of a decoder, and where each sequence stands.

    `room` is how many tokens to set space aside for; a state grows past it by itself.
    """

    def __init__(self, batch: int, layers: int, *, device: torch.device, room: int = 0) -> None:
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self.layers = [LayerState(self) for _ in range(layers)]
        self.memory_mask: Mask | None = None
        self.room = room
        self.end = 0
        """The longest row, known without asking the device."""
        self.uniform = True
        """Whether all rows are known to be equally long."""

    def positions(self, tokens: int) -> Int[Tensor, "#batch tokens"]:
        """Where the next `tokens` tokens of each row stand."""
        steps = torch.arange(tokens, device=self.lengths.device)
        return steps[None] + self.end if self.uniform else self.lengths[:, None] + steps

    def advance(self, tokens: int, lengths: Int[Tensor, " batch"] | None = None) -> None:
        """Count what was appended: `tokens` each, or only the first `lengths[b]` of row b.

        Padding beyond a row's length stays unread: causal masks hide it until it is overwritten.
        """
        self.lengths = self.lengths + (tokens if lengths is None else lengths)
        self.uniform = self.uniform and lengths is None
        self.end += tokens

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        self.lengths = self.lengths[rows]
        for layer in self.layers:
            layer.reorder(rows)
        if self.memory_mask is not None and self.memory_mask.allowed is not None:
            self.memory_mask = Mask(allowed=self.memory_mask.allowed[rows])
