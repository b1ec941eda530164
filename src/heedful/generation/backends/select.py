"""Select the backend of a request: the first that supports it, CTranslate2 before torch.

On texts of mixed lengths CTranslate2 is 0.9 to 4 times as fast as torch (benchmarks/notes/decoding.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heedful.errors import UsageError
from heedful.generation.backends.backend import Backend, SearchRequest
from heedful.generation.backends.cpu_backend import CpuBackend
from heedful.generation.backends.ctranslate2_backend import CTranslate2Backend
from heedful.generation.backends.cuda_graph_backend import CudaGraphBackend
from heedful.generation.backends.tapped_decoder import requires_modules
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.layers.taps import TapEdits
from heedful.models.build import GenerativeModel
from heedful.text.tokenizer import Tokenizer


class Backends:
    """The backends of one loaded model. Each is prepared by its first request and kept."""

    def __init__(
        self, model: GenerativeModel, tokenizers: Sequence[Tokenizer] = (), folder: Path | None = None
    ) -> None:
        self.model, self.tokenizers = model, tokenizers
        self.ctranslate2 = CTranslate2Backend(model, tokenizers, folder)
        self.torch_backends: tuple[TorchBackend, ...] = (
            CudaGraphBackend(model),
            CpuBackend(model),
            TorchBackend(model),
        )
        """Fastest first; the last supports everything."""

    def settings(self, config: DecodingConfig, *, default_beam: int, edits: TapEdits | None = None) -> SearchSettings:
        """The search settings of a call; UsageError if it requires CTranslate2, which does not support it.

        If CTranslate2 could serve the call, torch's beam search stops early as CTranslate2's does, so that results do
        not depend on the backend of a batch, nor on taps and interventions.
        """
        model = self.model.config
        vocabulary = getattr(model, "target_vocabulary", None) or model.vocabulary
        settings = config.search_settings(self.tokenizers[-1], vocabulary, default_beam)
        reason = self.ctranslate2.unsupported_search(SearchRequest(settings=settings))
        if settings.requires_ctranslate2:
            obstacle = requires_modules(self.model, replace(settings, edits=edits)) or reason
            if obstacle:
                raise UsageError(f"{obstacle}; {'leave out int8' if settings.int8 else 'use engine torch'}")
        return replace(settings, early_stopping=reason is None, edits=edits)

    def select(self, request: SearchRequest) -> Backend:
        """The backend for a batch of sources or prompts."""
        return self.select_torch(request) if self.ctranslate2.unsupported(request) else self.ctranslate2

    def select_torch(self, request: SearchRequest) -> TorchBackend:
        """The fastest backend that decodes with torch, whose `decoding_model()` can also score given texts."""
        return next(backend for backend in self.torch_backends if backend.unsupported(request) is None)


def training_backend(model: GenerativeModel) -> TorchBackend:
    """The backend for one request to a model in training: it neither converts nor caches weights."""
    backend = CpuBackend(model, keep_weights=False)
    return TorchBackend(model) if backend.unsupported(SearchRequest()) else backend
