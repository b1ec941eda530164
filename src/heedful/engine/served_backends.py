"""The backends of a served model: all requests share one continuous batch, and generated tokens are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from heedful.errors import UsageError
from heedful.generation.backends.backend import Backend, Results, SearchRequest
from heedful.generation.backends.select import Backends
from heedful.generation.continuous.continuous_backend import ContinuousBackend
from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.layers.taps import TapEdits

Count = Callable[[int], object]


class ServedBackends(Backends):
    """A model's backends: `continuous`, if set, serves every request it supports; `count` receives tokens generated.

    Everything else is shared with `backends`, including prepared weights.
    """

    def __init__(self, backends: Backends, count: Count, continuous: ContinuousBackend | None = None) -> None:
        vars(self).update(vars(backends))
        self.count, self.continuous = count, continuous

    def settings(self, config: DecodingConfig, *, default_beam: int, edits: TapEdits | None = None) -> SearchSettings:
        """The search settings of a call: int8 weights, the operator's choice, if CTranslate2 serves the call."""
        if config.int8:
            with suppress(UsageError):
                return super().settings(config, default_beam=default_beam, edits=edits)
        return super().settings(config.with_changes(int8=False), default_beam=default_beam, edits=edits)

    def select(self, request: SearchRequest) -> Backend:
        """The backend for a batch of sources or prompts."""
        if self.continuous is not None and self.continuous.unsupported(request) is None:
            return CountedBackend(self.continuous, self.count)
        return CountedBackend(super().select(request), self.count)


class CountedBackend:
    """A backend that reports how many tokens it has generated."""

    def __init__(self, backend: Backend, count: Count) -> None:
        self.backend, self.count, self.name = backend, count, backend.name

    def unsupported(self, request: SearchRequest) -> str | None:
        return self.backend.unsupported(request)

    def translate(self, request: SearchRequest) -> Results:
        return self._counted(self.backend.translate(request))

    def generate(self, request: SearchRequest) -> Results:
        return self._counted(self.backend.generate(request))

    def stream(self, request: SearchRequest) -> Iterator[int]:
        for token in self.backend.stream(request):
            self.count(1)
            yield token

    def _counted(self, results: Results) -> Results:
        self.count(sum(len(hypotheses[0].tokens) for hypotheses in results if hypotheses))
        return results
