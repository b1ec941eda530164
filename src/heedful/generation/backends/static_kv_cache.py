"""Places on a device that never move, and the steps recorded over them: for texts being written, and their sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.cuda_graphs import CudaGraphPool
from heedful.generation.search.decode_loop import masked_log_softmax
from heedful.layers.attention import cudnn_attention
from heedful.layers.kv_cache import KVCache, StaticCacheIndex
from heedful.layers.masks import Mask
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import OutputProjection
from heedful.shapes import Float, Int

FEWEST_PLACES, FEWEST_SOURCE_PLACES = 64, 16


class StaticCacheSize(NamedTuple):
    """Sources side by side, texts for each, places for a text, places for a source."""

    sources: int
    together: int
    places: int
    source_places: int


class StaticEncoder:
    """Sources of up to so many rows and places, read by one recording."""

    def __init__(self, model: EncoderDecoder, rows: int, places: int, recorder: CudaGraphPool | None) -> None:
        self.tokens = torch.zeros(rows, places, dtype=torch.long, device=model.table.weight.device)
        self.lengths = torch.ones(rows, dtype=torch.long, device=self.tokens.device)
        self.start: Callable[[], KVCache] = lambda: model.start(self.tokens, self.lengths)
        if recorder is not None:
            self.start = recorder.capture(self.start)

    def read(self, source: Int[Tensor, "rows n"], lengths: Int[Tensor, " rows"] | None, room: int) -> KVCache:
        """A state that has read them. It stands where the next one will: it is to move soon."""
        rows, places = source.shape
        self.tokens[:rows, :places] = source
        self.lengths[:rows] = places if lengths is None else lengths
        read: Any = self.start()
        state = KVCache(rows, len(read.layers), device=source.device, capacity=room)
        state.memory_mask = Mask(allowed=read.memory_mask.allowed[:rows])
        for layer, found in zip(state.layers, read.layers, strict=True):
            layer.memory = found.memory[0][:rows], found.memory[1][:rows]
        return state


class StaticKVCache:
    """Keys and values of texts and sources in places that never move, and the steps recorded over them.

    Recordings are made for as many rows and places as are in use, rounded up: when texts leave, the steps get smaller.
    """

    def __init__(self, model: Any, output: PaddedOutput, size: StaticCacheSize, recorder: CudaGraphPool | None) -> None:
        self.model, self.output, self.size, self.recorder = model, output, size, recorder
        weight, attention, layers = model.table.weight, model.decoder.attention, len(model.decoder.blocks)
        rows = size.sources * size.together

        def held(rows: int, places: int) -> tuple[list[Tensor], list[Tensor]]:
            keys, values = (
                [weight.new_zeros(rows, attention.groups, places, width) for _ in range(layers)]
                for width in (attention.d_k, attention.d_v)
            )
            return keys, values

        self.keys, self.values = held(rows, size.places)
        self.memory = held(size.sources, size.source_places)
        self.closed = weight.new_zeros(size.sources, 1, 1, size.source_places)
        """0 where a source may be read, −∞ beyond its end."""
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=weight.device)
        self.place = torch.zeros(1, dtype=torch.long, device=weight.device)
        self.origin = torch.zeros(rows, size.places, dtype=torch.int32, device=weight.device)
        self.own = torch.arange(rows, dtype=torch.int32, device=weight.device)
        self.whole = attention.has_kernel(weight)
        """Whether a step is recorded over all places: where only those in use are read."""
        self.moved = False
        """Whether texts have been reordered, so that some point elsewhere."""
        self.steps: dict[tuple[int, int, str, bool], Callable[[], Any]] = {}

    def take_over(self, state: KVCache) -> None:
        """Texts from a state of their own."""
        rows, end = len(state.lengths), state.longest
        self.place.fill_(end)
        self.origin[:] = self.own[:, None]
        self.moved = False
        for layer, key, value in zip(state.layers, self.keys, self.values, strict=True):
            assert layer.keys is not None
            assert layer.values is not None
            key[:rows, :, :end] = layer.keys[:, :, :end]
            value[:rows, :, :end] = layer.values[:, :, :end]
        for layer, key, value in zip(state.layers, *self.memory, strict=True):
            if layer.memory is not None:
                key[: len(layer.memory[0])], value[: len(layer.memory[1])] = layer.memory
        if state.memory_mask is not None:
            bias = state.memory_mask.as_bias(self.closed.dtype).bias
            assert bias is not None
            self.closed[: len(bias)] = bias

    def given_back(self, rows: int, end: int, together: int) -> KVCache:
        """The texts as a state of their own."""
        state = KVCache(rows, len(self.keys), device=self.place.device, capacity=self.size.places)
        state.lengths, state.longest, state.rows_per_source = state.lengths + end, end, together
        sources, places = rows // together, torch.arange(end, device=self.place.device)
        origin = self.origin[:rows, :end]
        for layer, key, value, *memory in zip(state.layers, self.keys, self.values, *self.memory, strict=True):
            layer.keys, layer.values = (held[origin, :, places].transpose(1, 2) for held in (key, value))
            if self.size.source_places:
                layer.memory = memory[0][:sources].clone(), memory[1][:sources].clone()
        if self.size.source_places:
            state.memory_mask = Mask(allowed=self.closed[:sources] == 0)
        return state

    def reorder(self, rows: Int[Tensor, " chosen"], sources: Int[Tensor, " kept"] | None) -> None:
        """No text moves: it points to where its past was written. Sources do, when some leave."""
        self.origin[: len(rows)] = self.origin[rows]
        self.moved = True
        if sources is not None and self.size.source_places:
            for held in (*self.memory[0], *self.memory[1], self.closed):
                held[: len(sources)] = held[sources]

    def step(self, tokens: Int[Tensor, "rows 1"], end: int, what: str) -> Any:
        """What is wanted after one token more in each row, with which `end` places are filled."""
        rows = next_power_of_two(-(-len(tokens) // self.size.together)) * self.size.together
        places = self.size.places if self.whole else min(self.size.places, padded_length(end))
        shape = rows, places, what, self.moved
        self.tokens[: len(tokens)] = tokens
        self.origin[:, end - 1] = self.own
        if shape not in self.steps:
            self.steps[shape] = self._recorded(self._step(*shape))
        found = self.steps[shape]()
        self.place += 1
        return found[: len(tokens)] if what == "logits" else tuple(part[: len(tokens)] for part in found)

    def _recorded(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Without a GPU it is simply taken, and the same."""
        if self.recorder is None:
            return step
        with cudnn_attention(True):
            return self.recorder.capture(step)

    def _step(self, rows: int, places: int, what: str, moved: bool) -> Callable[[], Any]:
        """A step of so many rows over so many places."""
        tokens, state, output = self.tokens[:rows], self._pinned(rows, places, moved), self.output

        def logits() -> Tensor:
            return output(self.model.states(tokens, cache=state))

        def likeliest() -> tuple[Tensor, Tensor]:
            return argmax_log_probability(logits())

        return logits if what == "logits" else likeliest

    def _pinned(self, rows: int, places: int, moved: bool) -> KVCache:
        """A state over the first so many rows and places."""
        state = KVCache(rows, len(self.keys), device=self.place.device)
        state.static_index, state.rows_per_source = StaticCacheIndex(self.place, self.origin[:rows, :places], moved), self.size.together
        sources = rows // self.size.together
        for layer, key, value, *memory in zip(state.layers, self.keys, self.values, *self.memory, strict=True):
            layer.keys, layer.values = key, value
            layer.memory = memory[0][:sources], memory[1][:sources]
        state.memory_mask = Mask(bias=self.closed[:sources], resolved=True)
        return state


class PaddedOutput:
    """States to logits, by a table with rows added until there is a whole number of them."""

    def __init__(self, model: Any) -> None:
        with torch.inference_mode():
            nothing = model.table.weight.new_zeros(1, 1, model.config.width)
            scoring = model.output_projection("next_token", nothing)
            self.vocabulary = len(scoring.weight)
            _, self.weight, self.bias = scoring.filled()

    def __call__(self, states: Float[Tensor, "rows 1 width"]) -> Float[Tensor, "rows 1 vocabulary"]:
        return F.linear(*OutputProjection(states, self.weight, self.bias))[..., : self.vocabulary]


def argmax_log_probability(logits: Float[Tensor, "rows 1 vocabulary"]) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """The likeliest token of each row, and its log-probability."""
    if logits.is_cuda:
        from heedful.kernels.argmax_logprob import argmax_logprob  # there is none without a GPU

        return argmax_logprob(logits[:, 0])
    likely, tokens = masked_log_softmax(logits[:, 0]).max(-1)
    return tokens, likely


def next_power_of_two(number: int, least: int = 1) -> int:
    """Up to a power of two, so that few sizes occur."""
    return max(least, 1 << (number - 1).bit_length()) if number > 0 else least


def padded_length(number: int) -> int:
    """Up to a quarter of a power of two: few sizes, and little of them unused."""
    step = max(FEWEST_PLACES, next_power_of_two(number) // 8)
    return -(-max(1, number) // step) * step


def padded_source_length(number: int) -> int:
    return next_power_of_two(number, FEWEST_SOURCE_PLACES)
