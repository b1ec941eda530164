"""Steps recorded once and replayed: on a GPU, writing a token is mostly waiting for kernels to be launched.

A recording repeats the same kernels on the same places. So texts being written move into room that stays where it is,
of a size that comes again; what is not filled is closed. The searches need not know: this is one more model that
reads tokens into a state, and a state that can be reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from heedful.cuda_graphs import Recorder
from heedful.generation.backends.static_kv_cache import (
    Output,
    Room,
    Size,
    Source,
    best,
    places_for,
    rounded,
    source_places_for,
)
from heedful.layers.kv_cache import AttentionState, kept_sources
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.shapes import Float, Int

MOST = 16
"""Sizes of rooms, and of sources, whose recordings are kept."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class Recorded:
    """A transformer that decodes by replaying its steps. The model is no longer to be changed, nor used otherwise."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.table = model, model.config, model.table
        self.recorder = Recorder() if self.table.weight.is_cuda else None
        self.output = Output(model)
        self.rooms: dict[Size, Room] = {}
        self.sources: dict[tuple[int, int], Source] = {}

    @torch.inference_mode()
    def start(self, *given: Any, room: int = 0) -> Writing:
        """The state of texts whose first tokens are read as they come; what follows is replayed."""
        if not isinstance(self.model, EncoderDecoder):
            return Writing(self.model.start(*given, room=room), places_for(room))
        source, lengths = given
        size = rounded(len(source)), source_places_for(source.shape[1])
        read = kept(self.sources, size, lambda: Source(self.model, *size, self.recorder))
        return Writing(read.read(source, lengths, room), places_for(room))

    def extend(
        self, tokens: Int[Tensor, "rows new"], state: Writing, lengths: None = None, *, last: bool = False
    ) -> Float[Tensor, "rows asked vocabulary"]:
        """Logits after each of the next tokens, or the last."""
        if self._is_beginning(tokens, state):
            logits: Tensor = self.model.extend(tokens, state.begun, lengths, last=last)
            return logits
        replayed: Tensor = state.step(self, tokens, "logits")
        return replayed

    def likeliest(self, tokens: Int[Tensor, "rows new"], state: Writing) -> tuple[Tensor, Tensor]:
        """After the next tokens, the likeliest of each row and its log-probability: chosen in the recording, too."""
        if self._is_beginning(tokens, state):
            return best(self.model.extend(tokens, state.begun, last=True))
        token, likely = state.step(self, tokens, "likeliest")
        return token.clone(), likely.clone()

    def _is_beginning(self, tokens: Tensor, state: Writing) -> bool:
        return state.room is None and (tokens.shape[1] > 1 or state.begun.end == 0)


class Writing:
    """Texts being written: at first in a state of their own, then in a room."""

    def __init__(self, begun: AttentionState, places: int) -> None:
        self.begun, self.places = begun, places
        self.room: Room | None = None
        self.rows, self.end, self.together = len(begun.lengths), 0, 1

    @property
    def lengths(self) -> Int[Tensor, " rows"]:
        if self.room is None:
            return self.begun.lengths
        return torch.full((self.rows,), self.end, device=self.begun.lengths.device)

    def step(self, model: Recorded, tokens: Int[Tensor, "rows 1"], what: str) -> Any:
        """Read one more token of each row, in the room; what is wanted after it."""
        if self.room is None:
            self._move_in(model)
        assert self.room is not None
        assert self.end < self.room.size.places, "a room was made for the longest text"
        self.end += 1
        return self.room.step(tokens, self.end, what)

    def reorder(self, rows: Int[Tensor, " chosen"], together: int = 1) -> None:
        if self.room is not None and together != self.together:  # what was shared no longer is: another room
            self.begun = self.room.given_back(self.rows, self.end, self.together)
            self.room = None
        if self.room is None:
            self.begun.reorder(rows, together)
        else:
            self.room.reorder(rows, kept_sources(rows, self.rows, self.together, together))
        self.rows = len(rows)

    def _move_in(self, model: Recorded) -> None:
        begun = self.begun
        sources, memory = len(begun.lengths) // begun.together, begun.layers[0].memory
        read = 0 if memory is None else memory[0].shape[2]
        size = Size(rounded(sources), begun.together, max(self.places, places_for(begun.end + 1)), read)
        made = partial(Room, model.model, model.output, size, model.recorder)
        self.room = kept(model.rooms, size, made)
        self.room.take_over(begun)
        self.end, self.together = begun.end, begun.together


def kept(made: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """What was made for this key, or is made now. The last few to be asked for are kept: memory is finite."""
    value = made.pop(key) if key in made else make()
    made[key] = value
    while len(made) > MOST:
        del made[next(iter(made))]
    return value
