"""Static KV cache and the CUDA graphs captured over it.

A CUDA graph replays the same kernels on the same addresses, so hypotheses and encoded sources live in tensors of a few
fixed sizes; unused positions are masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.cuda_graphs import CudaGraphCapturer
from heedful.device import cudnn_attention
from heedful.generation.search.decoding_batch import masked_log_softmax
from heedful.kernels import dispatch
from heedful.layers.kv_cache import KVCache, StaticCacheIndex
from heedful.layers.masks import Mask
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import OutputProjection
from heedful.shapes import Float, Int

MIN_LENGTH, MIN_SOURCE_LENGTH = 64, 16


class StaticCacheSize(NamedTuple):
    """Shape of a static KV cache."""

    sources: int
    rows_per_source: int
    length: int
    source_length: int


class StaticEncoder:
    """The encoder captured for up to `rows` sources of up to `length` tokens."""

    def __init__(self, model: EncoderDecoder, rows: int, length: int, graphs: CudaGraphCapturer | None) -> None:
        self.tokens = torch.zeros(rows, length, dtype=torch.long, device=model.device)
        self.lengths = torch.ones(rows, dtype=torch.long, device=self.tokens.device)
        self.start: Callable[[], KVCache] = lambda: model.start(self.tokens, self.lengths)
        if graphs is not None:
            self.start = graphs.capture(self.start)

    def encode(self, source: Int[Tensor, "rows n"], lengths: Int[Tensor, " rows"], capacity: int) -> KVCache:
        """A KV cache with the encoded sources, copied: the next replay overwrites what this one wrote."""
        rows, length = source.shape
        self.tokens[:rows, :length] = source
        self.lengths[:rows] = lengths
        encoded: Any = self.start()
        cache = KVCache(rows, len(encoded.layers), device=source.device, capacity=capacity)
        cache.memory_mask = Mask(allowed=encoded.memory_mask.allowed[:rows].clone())
        for layer, encoded_layer in zip(cache.layers, encoded.layers, strict=True):
            layer.memory = encoded_layer.memory[0][:rows].clone(), encoded_layer.memory[1][:rows].clone()
        return cache


class StaticKVCache:
    """Keys and values of hypotheses and sources at fixed addresses, with the decode steps captured over them.

    A graph is captured for the number of rows and positions in use, rounded up: as rows finish, steps get smaller.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        output: PaddedOutput,
        size: StaticCacheSize,
        graphs: CudaGraphCapturer | None,
    ) -> None:
        self.model, self.output, self.size, self.graphs = model, output, size, graphs
        weight, attention, layers = model.table.weight, model.decoder.attention, len(model.decoder.blocks)
        rows = size.sources * size.rows_per_source
        assert attention is not None, "a model without attention is decoded by torch"

        def allocate(rows: int, length: int) -> tuple[list[Tensor], list[Tensor]]:
            keys, values = (
                [weight.new_zeros(rows, attention.groups, length, width) for _ in range(layers)]
                for width in (attention.d_k, attention.d_v)
            )
            return keys, values

        self.keys, self.values = allocate(rows, size.length)
        self.memory = allocate(size.sources, size.source_length)
        self.memory_bias = weight.new_zeros(size.sources, 1, 1, size.source_length)
        """Additive bias: 0 within a source, −∞ beyond its end."""
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.long, device=weight.device)
        self.cache_rows = torch.zeros(rows, size.length, dtype=torch.int32, device=weight.device)
        """For each row and position, the index of the row that stores its keys and values."""
        self.row_indices = torch.arange(rows, dtype=torch.int32, device=weight.device)
        self.capture_full_length = dispatch.has_decode_attention(attention, weight)
        """Whether a graph covers all positions: the kernel reads only those in use."""
        self.reordered = False
        """Whether any row's past is stored in another row."""
        self.steps: dict[tuple[int, int, str, bool], Callable[[], Any]] = {}

    def load(self, cache: KVCache) -> None:
        """Copy an ordinary KV cache into this one."""
        rows, length = len(cache.lengths), cache.longest
        self.position.fill_(length)
        self.cache_rows[:] = self.row_indices[:, None]
        self.reordered = False
        for layer, key, value in zip(cache.layers, self.keys, self.values, strict=True):
            assert layer.keys is not None
            assert layer.values is not None
            key[:rows, :, :length] = layer.keys[:, :, :length]
            value[:rows, :, :length] = layer.values[:, :, :length]
        for layer, key, value in zip(cache.layers, *self.memory, strict=True):
            if layer.memory is not None:
                key[: len(layer.memory[0])], value[: len(layer.memory[1])] = layer.memory
        if cache.memory_mask is not None:
            bias = cache.memory_mask.as_bias(self.memory_bias.dtype).bias
            assert bias is not None
            self.memory_bias[: len(bias)] = bias

    def unload(self, rows: int, length: int, rows_per_source: int) -> KVCache:
        """Copy these rows to an ordinary KV cache."""
        cache = KVCache(rows, len(self.keys), device=self.position.device, capacity=self.size.length)
        cache.lengths, cache.longest, cache.rows_per_source = cache.lengths + length, length, rows_per_source
        sources, positions = rows // rows_per_source, torch.arange(length, device=self.position.device)
        cache_rows = self.cache_rows[:rows, :length]
        for layer, key, value, *memory in zip(cache.layers, self.keys, self.values, *self.memory, strict=True):
            layer.keys, layer.values = (tensor[cache_rows, :, positions].transpose(1, 2) for tensor in (key, value))
            if self.size.source_length:
                layer.memory = memory[0][:sources].clone(), memory[1][:sources].clone()
        if self.size.source_length:
            cache.memory_mask = Mask(allowed=self.memory_bias[:sources] == 0)
        return cache

    def reorder(self, rows: Int[Tensor, " chosen"], sources: Int[Tensor, " kept"] | None) -> None:
        """Update the indices of each row's past without moving it. Sources are moved when some leave."""
        self.cache_rows[: len(rows)] = self.cache_rows[rows]
        self.reordered = True
        if sources is not None and self.size.source_length:
            for tensor in (*self.memory[0], *self.memory[1], self.memory_bias):
                tensor[: len(sources)] = tensor[sources]

    def decode_one_token(self, tokens: Int[Tensor, "rows 1"], length: int, output: str) -> Any:
        """Replay one step, after which `length` positions are filled: "logits", or "argmax" with log-probability."""
        rows_per_source = self.size.rows_per_source
        rows = next_power_of_two(-(-len(tokens) // rows_per_source)) * rows_per_source
        captured = self.size.length if self.capture_full_length else min(self.size.length, padded_length(length))
        shape = rows, captured, output, self.reordered
        self.tokens[: len(tokens)] = tokens
        self.cache_rows[:, length - 1] = self.row_indices
        if shape not in self.steps:
            self.steps[shape] = self._capture(self._step(*shape))
        result = self.steps[shape]()
        self.position += 1
        return result[: len(tokens)] if output == "logits" else tuple(part[: len(tokens)] for part in result)

    def _capture(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Capture a step as a CUDA graph; without a GPU, return it unchanged."""
        if self.graphs is None:
            return step
        with cudnn_attention(True):
            return self.graphs.capture(step)

    def _step(self, rows: int, length: int, output: str, reordered: bool) -> Callable[[], Any]:
        tokens, cache, project = self.tokens[:rows], self._view(rows, length, reordered), self.output

        def logits() -> Tensor:
            return project(self.model.states(tokens, cache=cache))

        def argmax() -> tuple[Tensor, Tensor]:
            return argmax_log_probability(logits())

        return logits if output == "logits" else argmax

    def _view(self, rows: int, length: int, reordered: bool) -> KVCache:
        """A KV cache over the first rows and positions of this one's tensors."""
        cache = KVCache(rows, len(self.keys), device=self.position.device)
        cache.static_index = StaticCacheIndex(self.position, self.cache_rows[:rows, :length], reordered)
        cache.rows_per_source = self.size.rows_per_source
        sources = rows // self.size.rows_per_source
        for layer, key, value, *memory in zip(cache.layers, self.keys, self.values, *self.memory, strict=True):
            layer.keys, layer.values = key, value
            layer.memory = memory[0][:sources], memory[1][:sources]
        cache.memory_mask = Mask(bias=self.memory_bias[:sources], resolved=True)
        return cache


class PaddedOutput:
    """The output projection with its vocabulary padded to a round size, which GPU kernels prefer."""

    def __init__(self, model: Decoder | EncoderDecoder) -> None:
        with torch.inference_mode():
            states = model.table.weight.new_zeros(1, 1, model.config.width)
            projection = model.output_projection("next_token", states)
            self.vocabulary = len(projection.weight)
            _, self.weight, self.bias = projection.padded()

    def __call__(self, states: Float[Tensor, "rows 1 width"]) -> Float[Tensor, "rows 1 vocabulary"]:
        return F.linear(*OutputProjection(states, self.weight, self.bias))[..., : self.vocabulary]


def argmax_log_probability(
    logits: Float[Tensor, "rows 1 vocabulary"],
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """The best token of each row and its log-probability."""
    if dispatch.has_argmax_logprob(logits):
        return dispatch.argmax_logprob(logits[:, 0])
    log_probabilities, tokens = masked_log_softmax(logits[:, 0]).max(-1)
    return tokens, log_probabilities


def next_power_of_two(number: int, least: int = 1) -> int:
    """Round up to a power of two, so that few sizes occur."""
    return max(least, 1 << (number - 1).bit_length()) if number > 0 else least


def padded_length(number: int) -> int:
    """Round up to an eighth of a power of two: few sizes, little padding."""
    step = max(MIN_LENGTH, next_power_of_two(number) // 8)
    return -(-max(1, number) // step) * step
