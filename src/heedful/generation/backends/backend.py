"""The interface of a decoding backend, which turns token ids into hypotheses.

Backends are interchangeable: each returns the same hypotheses for the same request (up to rounding), or gives in
`unsupported` the reason why it cannot. torch supports everything and is the fallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from heedful.data.progress import ProgressCallback
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import SearchSettings

TokenIds = Sequence[int]
Results = list[list[Hypothesis]]
"""The `n_best` hypotheses of each text in order, best first."""


def ignore_progress(done: int) -> None:
    """The default progress callback."""


@dataclass(frozen=True)
class SearchRequest:
    """A request to a backend: texts, search settings, prefixes and limits; without texts it only tests the settings."""

    texts: Sequence[TokenIds] = ()
    """Sources to translate, or prompts to continue; an empty prompt begins a new document."""
    settings: SearchSettings = field(default_factory=SearchSettings)
    prefixes: Sequence[TokenIds] | None = None
    """Forced first tokens of each translation."""
    max_lengths: Sequence[int] | None = None
    """Maximum number of tokens to generate for each source, instead of the settings' `max_length`."""
    progress: ProgressCallback = ignore_progress

    @property
    def longest(self) -> int:
        return max(map(len, self.texts), default=0)

    def select(self, indices: Sequence[int]) -> SearchRequest:
        """The same request with only these texts."""
        return replace(
            self,
            texts=[self.texts[i] for i in indices],
            prefixes=self.prefixes and [self.prefixes[i] for i in indices],
            max_lengths=self.max_lengths and [self.max_lengths[i] for i in indices],
        )


@runtime_checkable
class Backend(Protocol):
    """Searches for translations of sources and continuations of prompts."""

    name: str

    def unsupported(self, request: SearchRequest) -> str | None:
        """Why this backend cannot serve the request; None = it can."""

    def translate(self, request: SearchRequest) -> Results:
        """Translate each source."""

    def generate(self, request: SearchRequest) -> Results:
        """Continue each prompt."""

    def stream(self, request: SearchRequest) -> Iterator[int]:
        """Yield the tokens after one prompt as they are chosen; one hypothesis, greedy or sampled."""
