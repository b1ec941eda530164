"""The CPU backend: torch's search over a decoder without nn.Module calls, with rows split over threads.

It serves on a CPU what CTranslate2 does not support. Measured gain (docs/results.md, two cores): Transformer-base at
batch 32 generates 975 tokens/s where Hugging Face generates 723; a single text of the small model 647 and 360.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from heedful.generation.backends.backend import Results, SearchRequest
from heedful.generation.backends.cpu_decoder import CpuDecoder, decoder_modules, encoder_modules
from heedful.generation.backends.row_parallel import run_row_parallel
from heedful.generation.backends.tapped_decoder import requires_modules, walk_modules
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.settings import SearchSettings
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.models.build import GenerativeModel
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import NextTokenHead
from heedful.models.standard_settings import nonstandard_setting

SUPPORTED_MODULES = (
    *(Stack, Block, SelfAttention, CrossAttention, FeedForward, Residual, Embedding, NextTokenHead),
    *(LearnedPositions, SinusoidalPositions),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Embedding),
)


class CpuBackend(TorchBackend):
    """Transformers on a CPU.

    `keep_weights`: keep the decoder and its repacked weights for the next request, and split rows over threads. If
    False (for a model being trained), each request builds a new decoder.
    """

    name = "cpu"

    def __init__(self, model: GenerativeModel, *, keep_weights: bool = True) -> None:
        super().__init__(model)
        self.model: GenerativeModel = model
        self.keep_weights = keep_weights
        self._decoder: CpuDecoder | None = None

    def unsupported(self, request: SearchRequest) -> str | None:
        """Why the CPU decoder cannot serve the request, or None if it can."""
        if request.settings.exact:
            return "exact results come from the model's own modules"
        model = self.model
        if problem := requires_modules(model, request.settings):
            return problem
        if not (type(model) is Decoder or type(model) is EncoderDecoder) or "extend" in vars(model):
            return f"{type(model).__name__} is not a plain transformer decoder"
        if model.device.type != "cpu":
            return f"the model is on {model.device}"
        config = model.config
        if setting := nonstandard_setting(config, other_sizes=True):
            return f"{setting} is not implemented"
        if config.window is not None or config.positions == "alibi" or config.segments or not config.skip:
            return "window, alibi, segments or skip=False is not implemented"
        if config.score not in ("dot", "scaled_dot") or not config.softmax:
            return f"score={config.score!r}, softmax={config.softmax} is not implemented"
        for module in (
            module for part in (*decoder_modules(model), *encoder_modules(model)) for module in walk_modules(part)
        ):
            if type(module) not in SUPPORTED_MODULES:
                return f"{type(module).__name__} is not implemented"
            if module.training:
                return "the model is in training mode"
        return None

    def decoding_model(self, settings: SearchSettings | None = None) -> CpuDecoder:
        """The CPU decoder of the model, rebuilt when its weights have changed."""
        if self._decoder is None or not self.keep_weights or not self._decoder.is_current():
            assert isinstance(self.model, Decoder | EncoderDecoder), "checked by `unsupported`"
            self._decoder = CpuDecoder(self.model, keep_weights=self.keep_weights)
        return self._decoder

    def translate(self, request: SearchRequest) -> Results:
        return self._search(TorchBackend.translate, request)

    def generate(self, request: SearchRequest) -> Results:
        return self._search(TorchBackend.generate, request)

    def _search(self, search: Callable[[TorchBackend, SearchRequest], Results], request: SearchRequest) -> Results:
        workers = self.worker_count(len(request.texts), request.settings.rows_per_text)
        return run_row_parallel(self.decoding_model(), request, workers, search)

    def worker_count(self, texts: int, rows_per_text: int) -> int:
        """Threads to split the rows over: 1, or one per `ROWS_PER_THREAD` rows of a wide model."""
        if not self.keep_weights or self.model.config.width < WIDE_MODEL:
            return 1
        return max(1, min(torch.get_num_threads(), texts * rows_per_text // ROWS_PER_THREAD, texts))
