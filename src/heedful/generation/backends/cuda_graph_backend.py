"""The CUDA-graph backend: torch's search over decode steps captured once and replayed, in bfloat16.

On a GPU a decode step is mostly waiting for kernel launches, which a CUDA graph saves. What it wins (docs/results.md,
one H200): GPT-2 124M at batch 1 generates 2,622 tokens/s where Hugging Face's compiled static cache generates 489;
Transformer-base at batch 64, beam 4: 52.5k where Hugging Face generates 7.8k.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from heedful.cuda_graphs import CudaGraphCapturer
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.static_kv_cache import (
    MIN_SOURCE_LENGTH,
    PaddedOutput,
    StaticCacheSize,
    StaticEncoder,
    StaticKVCache,
    argmax_log_probability,
    next_power_of_two,
    padded_length,
)
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.layers.kv_cache import KVCache, kept_sources
from heedful.layers.taps import has_listeners
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.protocols import DecoderModel
from heedful.models.transformer import Transformer
from heedful.shapes import Float, Int

CACHE_SIZE = 16
"""Static KV caches, and captured encoders, kept for reuse."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class CudaGraphBackend(TorchBackend):
    """Transformers on a GPU.

    The first request copies the model in bfloat16; later changes of its weights are not seen.
    """

    name = "cuda_graph"

    def __init__(self, model: DecoderModel) -> None:
        super().__init__(model)
        self._decoder: CudaGraphDecoder | None = None

    def unsupported(self, request: SearchRequest) -> str | None:
        if request.settings.exact:
            return "exact results come from the model's own modules"
        if not isinstance(self.model, Transformer):
            return f"{type(self.model).__name__} is not a transformer"
        if self.model.device.type != "cuda":
            return f"the model is on {self.model.device}"
        if has_listeners(self.model):
            return "a tap is listening, and a replayed CUDA graph calls no taps"
        return None

    def decoding_model(self) -> DecoderModel:
        if self._decoder is None:
            model: Any = deepcopy(self.model)
            self._decoder = CudaGraphDecoder(model.to(torch.bfloat16).eval())
        return self._decoder


class CudaGraphDecoder:
    """A transformer whose decode steps are replayed CUDA graphs: a drop-in `DecoderModel` for the search.

    The model must not be changed or used otherwise afterwards.
    """

    def __init__(self, model: Decoder | EncoderDecoder) -> None:
        self.model, self.config, self.device = model, model.config, model.device
        self.graphs = CudaGraphCapturer() if self.device.type == "cuda" else None
        self.output = PaddedOutput(model)
        self.caches: dict[StaticCacheSize, StaticKVCache] = {}
        self.encoders: dict[tuple[int, int], StaticEncoder] = {}

    @torch.inference_mode()
    def start(self, *arguments: Any, capacity: int = 0) -> GraphDecodingState:
        """Encode the sources, if any. The prefill runs without graphs; the steps after it are replayed."""
        model = self.model
        if not isinstance(model, EncoderDecoder):
            return GraphDecodingState(model.start(*arguments, capacity=capacity), padded_length(capacity))
        source, lengths = arguments
        size = next_power_of_two(len(source)), next_power_of_two(source.shape[1], MIN_SOURCE_LENGTH)
        encoder = cached(self.encoders, size, lambda: StaticEncoder(model, *size, self.graphs))
        return GraphDecodingState(encoder.encode(source, lengths, capacity), padded_length(capacity))

    def extend(
        self, tokens: Int[Tensor, "rows new"], state: GraphDecodingState, *, last: bool = False
    ) -> Float[Tensor, "rows asked vocabulary"]:
        """Logits after each of the next tokens, or the last."""
        if self._is_prefill(tokens, state):
            logits: Tensor = self.model.extend(tokens, state.cache, last=last)
            return logits
        replayed: Tensor = state.decode_one_token(self, tokens, "logits")
        return replayed

    def argmax(self, tokens: Int[Tensor, "rows new"], state: GraphDecodingState) -> tuple[Tensor, Tensor]:
        """Each row's best token after the next tokens, and its log-probability: chosen inside the graph."""
        if self._is_prefill(tokens, state):
            return argmax_log_probability(self.model.extend(tokens, state.cache, last=True))
        best, log_probabilities = state.decode_one_token(self, tokens, "argmax")
        return best.clone(), log_probabilities.clone()

    def _is_prefill(self, tokens: Tensor, state: GraphDecodingState) -> bool:
        return state.static_cache is None and (tokens.shape[1] > 1 or state.cache.longest == 0)


class GraphDecodingState:
    """The hypotheses of one batch: prefilled in an ordinary KV cache, then decoded in a static one."""

    def __init__(self, cache: KVCache, length: int) -> None:
        self.cache, self.capacity = cache, length
        self.static_cache: StaticKVCache | None = None
        self.rows, self.length, self.rows_per_source = len(cache.lengths), 0, 1

    @property
    def lengths(self) -> Int[Tensor, " rows"]:
        if self.static_cache is None:
            return self.cache.lengths
        return torch.full((self.rows,), self.length, device=self.cache.lengths.device)

    def decode_one_token(self, model: CudaGraphDecoder, tokens: Int[Tensor, "rows 1"], output: str) -> Any:
        """Replay one decode step; `output` is "logits" or "argmax"."""
        if self.static_cache is None:
            self.static_cache = self._load_static_cache(model)
        assert self.length < self.static_cache.size.length, "the static cache has room for the longest text"
        self.length += 1
        return self.static_cache.decode_one_token(tokens, self.length, output)

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        if self.static_cache is not None and rows_per_source != self.rows_per_source:  # needs a cache of another shape
            self.cache = self.static_cache.unload(self.rows, self.length, self.rows_per_source)
            self.static_cache = None
        if self.static_cache is None:
            self.cache.reorder(rows, rows_per_source)
        else:
            self.static_cache.reorder(rows, kept_sources(rows, self.rows, self.rows_per_source, rows_per_source))
        self.rows = len(rows)

    def _load_static_cache(self, model: CudaGraphDecoder) -> StaticKVCache:
        cache, memory = self.cache, self.cache.layers[0].memory
        sources = next_power_of_two(len(cache.lengths) // cache.rows_per_source)
        length = max(self.capacity, padded_length(cache.longest + 1))
        source_length = 0 if memory is None else memory[0].shape[2]
        size = StaticCacheSize(sources, cache.rows_per_source, length, source_length)
        static = cached(model.caches, size, lambda: StaticKVCache(model.model, model.output, size, model.graphs))
        static.load(cache)
        self.length, self.rows_per_source = cache.longest, cache.rows_per_source
        return static


def cached(values: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The value for this key, made if missing; only the `CACHE_SIZE` last used are kept."""
    value = values.pop(key) if key in values else make()
    values[key] = value
    while len(values) > CACHE_SIZE:
        del values[next(iter(values))]
    return value
