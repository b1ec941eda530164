"""The CPU backend: torch's search over a decoder without nn.Module calls, with rows split over threads.

What it wins (docs/results.md, two cores): Transformer-base at batch 32 generates 975 tokens/s where Hugging Face
generates 723 and CTranslate2 550; a single text of the small model 653 where Hugging Face generates 258.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from heedful.generation.backends.backend import Results, SearchRequest
from heedful.generation.backends.cpu_decoder import CpuDecoder, decoder_modules
from heedful.generation.backends.row_parallel import run_row_parallel
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.layers.taps import has_listeners
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import NextToken
from heedful.models.model_config import TransformerConfig

SUPPORTED_MODULES = (
    *(Stack, Block, SelfAttention, CrossAttention, FeedForward, Residual, Embedding, NextToken),
    *(LearnedPositions, SinusoidalPositions),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Embedding),
)


class CpuBackend(TorchBackend):
    """Transformers on a CPU.

    `keep_weights`: keep the decoder and its repacked weights for the next request, and split rows over threads. If
    False (for a model being trained), each request builds a new decoder.
    """

    name = "cpu"

    def __init__(self, model: Any, *, keep_weights: bool = True) -> None:
        super().__init__(model)
        self.keep_weights = keep_weights
        self._decoder: CpuDecoder | None = None

    def unsupported(self, request: SearchRequest) -> str | None:
        """Why the CPU decoder cannot serve the request, or None if it can."""
        if request.settings.exact:
            return "exact results come from the model's own modules"
        model: Any = self.model
        if type(model) not in (Decoder, EncoderDecoder) or "extend" in vars(model):
            return f"{type(model).__name__} is not a plain transformer decoder"
        if model.device.type != "cpu":
            return f"the model is on {model.device}"
        config = model.config
        if config.window is not None or config.positions == "alibi" or config.segments or not config.skip:
            return "window, alibi, segments or skip=False is not implemented"
        if config.score not in ("dot", "scaled_dot") or not config.softmax:
            return f"score={config.score!r}, softmax={config.softmax} is not implemented"
        for module in (module for part in decoder_modules(model) for module in part.modules()):
            if type(module) not in SUPPORTED_MODULES or module._forward_hooks or module._forward_pre_hooks:
                return f"{type(module).__name__} is hooked or not implemented"
            if module.training:
                return "the model is in training mode"
        return None

    def decoding_model(self) -> CpuDecoder:
        """The CPU decoder of the model, rebuilt when its weights have changed."""
        if self._decoder is None or not self.keep_weights or not self._decoder.is_current():
            model: Any = self.model  # `unsupported` has checked its type
            self._decoder = CpuDecoder(model, keep_weights=self.keep_weights)
        return self._decoder

    def translate(self, request: SearchRequest) -> Results:
        return self._search(TorchBackend.translate, request)

    def generate(self, request: SearchRequest) -> Results:
        return self._search(TorchBackend.generate, request)

    def _search(self, search: Callable[[TorchBackend, SearchRequest], Results], request: SearchRequest) -> Results:
        workers = self.worker_count(len(request.texts), request.settings.rows_per_text)
        return run_row_parallel(self.decoding_model(), request, workers, search)

    def worker_count(self, texts: int, rows_per_text: int) -> int:
        """Threads to split the rows over: 1, or one per `ROWS_PER_THREAD` rows of a wide model.

        With a tap listening there is one thread, so that values arrive in order.
        """
        model: Any = self.model
        if not self.keep_weights or model.config.width < WIDE_MODEL or has_listeners(model):
            return 1
        return max(1, min(torch.get_num_threads(), texts * rows_per_text // ROWS_PER_THREAD, texts))


def is_faster_than_ctranslate2(config: TransformerConfig, texts: int, rows_per_text: int) -> bool:
    """Whether this backend is measured faster than CTranslate2: a wide model, and enough rows for every thread.

    With two threads it was 1.3 times as fast at width 512 and slower at 256, where the cost of each call counts more.
    """
    threads = torch.get_num_threads()
    return config.width >= WIDE_MODEL and texts >= threads and texts * rows_per_text >= ROWS_PER_THREAD * threads
