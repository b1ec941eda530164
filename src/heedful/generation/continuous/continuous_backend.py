"""The continuous backend: texts of concurrent callers are decoded in one batch that they join at any step."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

import torch

from heedful.generation.backends.backend import Results, SearchRequest
from heedful.generation.backends.select import Backends
from heedful.generation.backends.tapped_decoder import requires_modules
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.generation.backends.torch_backend import DEFAULT_MAX_LENGTH, default_max_lengths, max_context
from heedful.generation.continuous.queued_text import QueuedText
from heedful.generation.continuous.step_worker import step_workers
from heedful.models.model_config import TransformerConfig
from heedful.models.protocols import DecoderModel
from heedful.models.standard_settings import nonstandard_setting
from heedful.text.special_tokens import END, PAD, START


class ContinuousBackend:
    """Decodes for many threads concurrently; each thread waits only for its own texts."""

    name = "continuous"

    def __init__(self, backends: Backends) -> None:
        self.model = backends.model
        request = SearchRequest()

        def decoding_model() -> DecoderModel:
            return backends.select_torch(request).decoding_model(request.settings)

        wide = getattr(backends.model.config, "width", 0) >= WIDE_MODEL
        self.workers = step_workers(decoding_model, torch.get_num_threads(), split_rows=wide)

    @property
    def _window(self) -> int:
        """Positions of a text that a language model keeps in its cache; a recurrent model keeps a single state."""
        return max_context(self.model) or 1

    def busy_seconds(self) -> float:
        """Seconds since the last step of the slowest busy worker."""
        return max(worker.busy_seconds() for worker in self.workers)

    def unsupported(self, request: SearchRequest) -> str | None:
        """Why the request cannot share a batch; None if it can."""
        settings = request.settings
        if settings.requires_ctranslate2:
            return "only CTranslate2 serves these settings"
        if settings.exact:
            return "exact results depend on the batch"
        if setting := nonstandard_setting(self.model.config, other_sizes=True):
            return f"{setting} is not implemented"
        if self.model.device.type != "cpu":
            return f"the model is on {self.model.device}"
        return requires_modules(self.model, settings)

    def translate(self, request: SearchRequest) -> Results:
        """Translate each source."""
        settings = request.settings
        lengths = torch.tensor([len(source) + 1 for source in request.texts], dtype=torch.long)
        limits = request.max_lengths or default_max_lengths(lengths).tolist()
        if request.max_lengths is None and settings.max_length is not None:
            limits = [settings.max_length] * len(lengths)
        config = self.model.config
        if isinstance(config, TransformerConfig) and config.has_position_table:  # the table's size is the limit
            limits = [min(limit, config.max_length) for limit in limits]
        prefixes = request.prefixes or [()] * len(limits)
        return self._decode(
            request,
            [
                QueuedText(source, [START], settings, limit, forced=prefix)
                for source, limit, prefix in zip(request.texts, limits, prefixes, strict=True)
            ],
        )

    def generate(self, request: SearchRequest) -> Results:
        """Continue each prompt."""
        settings = request.settings
        limit = settings.max_length or DEFAULT_MAX_LENGTH
        return self._decode(
            request,
            [QueuedText(None, list(prompt) or [END], settings, limit, window=self._window) for prompt in request.texts],
        )

    def _submit(self, text: QueuedText) -> None:
        """Submit a text to the worker with the fewest rows; use others once the first has `ROWS_PER_THREAD` rows.

        Threads that decode separate rows need not wait for each other (`row_parallel`).
        """
        first, *others = self.workers
        rows = {worker: worker.rows for worker in self.workers}
        least = min(others, key=lambda worker: rows[worker], default=first)
        (least if rows[first] >= max(ROWS_PER_THREAD, rows[least]) else first).submit(text)

    def _decode(self, request: SearchRequest, texts: list[QueuedText]) -> Results:
        results = []
        try:
            for text in texts:
                self._submit(text)
            for text in texts:
                results.append(text.result())
                request.progress(1)
        except BaseException:
            for text in texts:
                text.cancel()
            raise
        return results

    def stream(self, request: SearchRequest) -> Iterator[int]:
        """Yield the tokens after one prompt as they are chosen; closing the iterator ends the search."""
        settings, (prompt,) = request.settings, request.texts
        tokens: SimpleQueue[int | None] = SimpleQueue()
        text = QueuedText(
            None,
            list(prompt) or [END],
            settings,
            settings.max_length or DEFAULT_MAX_LENGTH,
            window=self._window,
            on_token=tokens.put,
        )
        self._submit(text)
        try:
            while (token := tokens.get()) is not None and token not in (END, PAD):
                yield token
            text.result()
        finally:
            text.cancel()
