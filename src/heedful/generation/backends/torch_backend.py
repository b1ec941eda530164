"""The torch backend: batches texts by length, prefills the model and searches. Any model, device and setting.

It calls the model's own modules, so interventions, taps, hooks and bitwise exact results work. The CPU and CUDA-graph
backends are subclasses with a faster decoder; their docstrings give the measured speed-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.data.batching import map_length_buckets
from heedful.data.collate import pad_sequences
from heedful.errors import NonFiniteError
from heedful.generation.backends.backend import Results, SearchRequest
from heedful.generation.backends.tapped_decoder import TappedDecoder
from heedful.generation.search.beam_search import search
from heedful.generation.search.decode_loop import decode_steps
from heedful.generation.search.decoding_batch import DecodingBatch
from heedful.generation.search.hypotheses import NO_PROBABILITY, Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.layers.taps import is_observed
from heedful.models.protocols import DecoderModel
from heedful.shapes import Int
from heedful.text.special_tokens import END, PAD

BATCH_TOKENS = 8192
CUDA_BATCH_TOKENS = 1 << 15
"""Tokens per batch, including padding and beams."""
DEFAULT_MAX_LENGTH = 100
"""Tokens generated after a prompt unless the settings say otherwise."""


class TorchBackend:
    """Searches with a model's own `start` and `extend`."""

    name = "torch"

    def __init__(self, model: DecoderModel, *, batch_tokens: int | None = None) -> None:
        self.model = model
        self.batch_tokens = batch_tokens

    def unsupported(self, request: SearchRequest) -> str | None:
        return None

    def decoding_model(self, settings: SearchSettings) -> DecoderModel:
        """The model that decodes; subclasses return a faster equivalent."""
        model: Any = self.model
        if settings.edits is None and not (isinstance(model, nn.Module) and is_observed(model)):
            return self.model
        return TappedDecoder(model, settings.edits)

    def translate(self, request: SearchRequest) -> Results:
        """Encode sources of similar length together, search, and restore the order (G1)."""
        settings = request.settings
        model = self.decoding_model(settings)
        device = model.device

        def translate_batch(indices: list[int]) -> Results:
            batch = request.select(indices)
            source, lengths = pad_sequences(batch.texts, end=END, device=device)
            limits = default_max_lengths(lengths)
            if batch.max_lengths is not None:
                limits = lengths.new_tensor(batch.max_lengths)
            elif settings.max_length is not None:
                limits = torch.full_like(lengths, settings.max_length)
            if getattr(model.config, "has_position_table", False):  # the table's size is the limit
                limits = limits.clamp(max=model.config.max_length)
            with torch.inference_mode():
                state = start(model, source, lengths, capacity=int(limits.max()), texts=indices)
            results = search(model, state, limits, settings, prefixes=batch.prefixes)
            request.progress(len(indices))
            return results

        budget = self._token_budget(settings, CUDA_BATCH_TOKENS if device.type == "cuda" else BATCH_TOKENS)
        lengths = [len(source) + 1 for source in request.texts]
        return map_length_buckets(translate_batch, lengths, budget, longest_first=True)

    def generate(self, request: SearchRequest) -> Results:
        """Prefill prompts of equal length together, so that no row needs padding, and search."""
        settings = request.settings
        model = self.decoding_model(settings)
        device, window = model.device, max_context(model)
        max_length = settings.max_length or DEFAULT_MAX_LENGTH
        prompts = [list(prompt) or [END] for prompt in request.texts]
        budget = self._token_budget(settings, BATCH_TOKENS)
        results: dict[int, list[Hypothesis]] = {}
        for length in sorted({len(prompt) for prompt in prompts}):
            indices = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
            capacity = _capacity(length + max_length, window)
            rows = max(1, budget // capacity)
            for first in range(0, len(indices), rows):
                batch = indices[first : first + rows]
                prompt = torch.tensor([prompts[i] for i in batch], device=device)
                limits = torch.full((len(batch),), max_length, device=device)
                with torch.inference_mode():
                    state = start(model, len(batch), capacity=capacity, texts=batch)
                hypotheses = search(model, state, limits, settings, prompt=prompt, window=window)
                results |= zip(batch, hypotheses, strict=True)
                request.progress(len(batch))
        return [results[i] for i in range(len(prompts))]

    def stream(self, request: SearchRequest) -> Iterator[int]:
        """Yield the tokens that `generate` returns as they are chosen."""
        settings, (prompt,) = request.settings, request.texts
        model = self.decoding_model(settings)
        tokens = torch.tensor([list(prompt) or [END]], device=model.device)
        window, max_length = max_context(model), settings.max_length or DEFAULT_MAX_LENGTH
        with torch.inference_mode():
            state = start(model, 1, capacity=_capacity(tokens.shape[1] + max_length, window), texts=[0])
        limits = torch.tensor([max_length], device=tokens.device)
        sampling = settings.sampling
        choose = None if sampling is None else sampling.token_chooser(1, 1, max_length, tokens.device)
        hypotheses = DecodingBatch(model, state, prompt=tokens, rules=settings.rules, window=window)
        for step in decode_steps(hypotheses, limits, choose):
            token = int(step.tokens[0])
            if token == PAD and bool(step.log_probabilities[0].isnan()):
                raise NonFiniteError(NO_PROBABILITY)
            if token in (END, PAD):
                return
            yield token

    def _token_budget(self, settings: SearchSettings, default: int) -> int:
        """Tokens per batch, one row per text; 0 for exact results = one text per batch.

        Matrix products round differently for different batch sizes, so only a batch of one text is exact.
        """
        return 0 if settings.exact else (self.batch_tokens or default) // settings.rows_per_text


def start(model: DecoderModel, *arguments: Any, capacity: int, texts: Sequence[int]) -> Any:
    """The decoding state of these texts; a model with taps also gets the request's text index of each row."""
    if isinstance(model, TappedDecoder):
        return model.start(*arguments, capacity=capacity, texts=texts)
    return model.start(*arguments, capacity=capacity)


def default_max_lengths(lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The maximum length of a translation by source length: a model may never generate END."""
    return lengths * 2 + 20


def max_context(model: DecoderModel) -> int | None:
    """Maximum number of tokens that the model attends to; None for a recurrent model."""
    length: int | None = getattr(model.config, "max_length", None)
    return length


def _capacity(needed: int, window: int | None) -> int:
    return needed if window is None else min(needed, window)
