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

from heedful.cuda_graphs import CudaGraphPool
from heedful.generation.backends.static_kv_cache import (
    PaddedOutput,
    StaticKVCache,
    StaticCacheSize,
    StaticEncoder,
    argmax_log_probability,
    padded_length,
    next_power_of_two,
    padded_source_length,
)
from heedful.layers.kv_cache import KVCache, kept_sources
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.shapes import Float, Int

CACHE_SIZE = 16
"""Sizes of rooms, and of sources, whose recordings are kept."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class CudaGraphDecoder:
    """A transformer that decodes by replaying its steps. The model is no longer to be changed, nor used otherwise."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.table = model, model.config, model.table
        self.recorder = CudaGraphPool() if self.table.weight.is_cuda else None
        self.output = PaddedOutput(model)
        self.rooms: dict[StaticCacheSize, StaticKVCache] = {}
        self.sources: dict[tuple[int, int], StaticEncoder] = {}

    @torch.inference_mode()
    def start(self, *given: Any, capacity: int = 0) -> GraphDecodingState:
        """The state of texts whose first tokens are read as they come; what follows is replayed."""
        if not isinstance(self.model, EncoderDecoder):
            return GraphDecodingState(self.model.start(*given, capacity=capacity), padded_length(capacity))
        source, lengths = given
        size = next_power_of_two(len(source)), padded_source_length(source.shape[1])
        read = cached(self.sources, size, lambda: StaticEncoder(self.model, *size, self.recorder))
        return GraphDecodingState(read.read(source, lengths, capacity), padded_length(capacity))

    def extend(
        self, tokens: Int[Tensor, "rows new"], state: GraphDecodingState, lengths: None = None, *, last: bool = False
    ) -> Float[Tensor, "rows asked vocabulary"]:
        """Logits after each of the next tokens, or the last."""
        if self._is_beginning(tokens, state):
            logits: Tensor = self.model.extend(tokens, state.begun, lengths, last=last)
            return logits
        replayed: Tensor = state.step(self, tokens, "logits")
        return replayed

    def likeliest(self, tokens: Int[Tensor, "rows new"], state: GraphDecodingState) -> tuple[Tensor, Tensor]:
        """After the next tokens, the likeliest of each row and its log-probability: chosen in the recording, too."""
        if self._is_beginning(tokens, state):
            return argmax_log_probability(self.model.extend(tokens, state.begun, last=True))
        token, likely = state.step(self, tokens, "likeliest")
        return token.clone(), likely.clone()

    def _is_beginning(self, tokens: Tensor, state: GraphDecodingState) -> bool:
        return state.room is None and (tokens.shape[1] > 1 or state.begun.longest == 0)


class GraphDecodingState:
    """Texts being written: at first in a state of their own, then in a room."""

    def __init__(self, begun: KVCache, places: int) -> None:
        self.begun, self.places = begun, places
        self.room: StaticKVCache | None = None
        self.rows, self.end, self.together = len(begun.lengths), 0, 1

    @property
    def lengths(self) -> Int[Tensor, " rows"]:
        if self.room is None:
            return self.begun.lengths
        return torch.full((self.rows,), self.end, device=self.begun.lengths.device)

    def step(self, model: CudaGraphDecoder, tokens: Int[Tensor, "rows 1"], what: str) -> Any:
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

    def _move_in(self, model: CudaGraphDecoder) -> None:
        begun = self.begun
        sources, memory = len(begun.lengths) // begun.rows_per_source, begun.layers[0].memory
        read = 0 if memory is None else memory[0].shape[2]
        size = StaticCacheSize(next_power_of_two(sources), begun.rows_per_source, max(self.places, padded_length(begun.longest + 1)), read)
        made = partial(StaticKVCache, model.model, model.output, size, model.recorder)
        self.room = cached(model.rooms, size, made)
        self.room.take_over(begun)
        self.end, self.together = begun.longest, begun.rows_per_source


def cached(made: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """What was made for this key, or is made now. The last few to be asked for are kept: memory is finite."""
    value = made.pop(key) if key in made else make()
    made[key] = value
    while len(made) > CACHE_SIZE:
        del made[next(iter(made))]
    return value
