"""The CTranslate2 backend: an inference engine in C++ for transformers on a CPU, with float32 or int8 weights.

Measured gain (docs/results.md, two cores): a single text of the small model at 2,163 tokens/s where torch generates 647
and Hugging Face 360; with int8 3,278, and 19,711 at batch 32.

It needs a converted copy of the model, which the first request writes to the user's cache (`ctranslate2_cache`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.backends.backend import Results, SearchRequest
from heedful.generation.backends.ctranslate2_cache import converted_engine
from heedful.generation.backends.ctranslate2_engine import CTranslate2Engine
from heedful.generation.backends.tapped_decoder import requires_modules
from heedful.generation.backends.torch_backend import DEFAULT_MAX_LENGTH
from heedful.generation.search.settings import SearchSettings
from heedful.interop.ctranslate2_export import Quantization, import_ctranslate2, max_positions, unsupported_setting
from heedful.models.build import GenerativeModel
from heedful.models.decoder import Decoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.model_config import TransformerConfig
from heedful.text.tokenizer import Tokenizer


class CTranslate2Backend:
    """A model's CTranslate2 engines, one per quantization, converted again when the weights change."""

    name = "ctranslate2"

    def __init__(self, model: GenerativeModel, tokenizers: Sequence[Tokenizer], folder: Path | None) -> None:
        self.model, self.tokenizers, self.folder = model, tokenizers, folder
        self._engines: dict[Quantization, tuple[int, CTranslate2Engine]] = {}
        self.concurrent_calls = 1
        """Number of concurrent calls by different threads, each with `torch.get_num_threads()` of 1."""

    def unsupported(self, request: SearchRequest) -> str | None:
        """Why the request cannot be served; None if it can. Converts the model if that is all that is missing."""
        return requires_modules(self.model, request.settings) or self.unsupported_search(request)

    def unsupported_search(self, request: SearchRequest) -> str | None:
        """The same, without the check for taps and interventions; it decides how a beam search ends."""
        settings = request.settings
        if settings.engine == "torch":
            return "engine is torch"
        if self.folder is None and not settings.requires_ctranslate2:
            return "a model without a folder is converted only for engine ctranslate2"
        return (
            self._model_problem
            or self._settings_problem(settings)
            or self._length_problem(request)
            or self._conversion_problem(settings)
        )

    @cached_property
    def _model_problem(self) -> str | None:
        try:
            import_ctranslate2()
        except HeedfulError as error:
            return str(error)
        if setting := unsupported_setting(self.model.config):
            return f"ctranslate2 does not support {setting}"
        return None

    def _settings_problem(self, settings: SearchSettings) -> str | None:
        device = self.model.device
        problems = {
            f"runs on the CPU, and the model is on {device}": device.type != "cpu",
            "does not sample reproducibly": settings.sampling is not None,
            "does not give bitwise identical results whatever the batch": settings.exact,
            "has no stop strings or forbidden strings": settings.rules.automaton is not None,
            "has another repetition penalty": settings.rules.repetition_penalty != 1.0,
        }
        return next((f"ctranslate2 {problem}" for problem, applies in problems.items() if applies), None)

    def _length_problem(self, request: SearchRequest) -> str | None:
        if not request.texts:
            return None
        config, settings = self.model.config, request.settings
        assert isinstance(config, TransformerConfig), "CTranslate2 supports no other model"
        is_decoder = config.family == "decoder"
        if is_decoder and settings.rules.min_length:
            return "a minimum length after a prompt is left to torch"
        positions = config.max_length if is_decoder else max_positions(config)
        needed = request.longest + (settings.max_length or DEFAULT_MAX_LENGTH if is_decoder else 1)
        if positions is None or needed <= positions:
            return None
        return f"ctranslate2 has {positions} positions, and a text of {needed} tokens needs more"

    def _conversion_problem(self, settings: SearchSettings) -> str | None:
        try:
            self.engine(settings)
        except HeedfulError as error:
            return str(error)
        return None

    def engine(self, settings: SearchSettings) -> CTranslate2Engine:
        """The engine for these settings, converted at first use and when the weights have changed."""
        quantization: Quantization = "int8" if settings.int8 else "float32"
        version = sum(weight._version for weight in self._weights)
        converted_version, engine = self._engines.get(quantization, (None, None))
        if engine is None or converted_version != version:
            assert isinstance(self.model, Decoder | EncoderDecoder), "CTranslate2 supports no other model"
            vocabularies = [tokenizer.tokens for tokenizer in self.tokenizers]
            engine = converted_engine(self.model, vocabularies, quantization)
            engine.concurrent_calls = self.concurrent_calls
            self._engines[quantization] = (version, engine)
        return engine

    @cached_property
    def _weights(self) -> list[Tensor]:
        """The weights, whose in-place changes torch counts; listed once because every request reads them."""
        return [weight for weight in self.model.parameters() if not weight.is_inference()]

    def translate(self, request: SearchRequest) -> Results:
        return self.engine(request.settings).translate(request)

    def generate(self, request: SearchRequest) -> Results:
        return self.engine(request.settings).generate(request)

    def stream(self, request: SearchRequest) -> Iterator[int]:
        return self.engine(request.settings).stream(request)
