"""The interface of a backend: the part of the system that turns token ids into hypotheses.

Backends are interchangeable: each returns the same hypotheses for the same settings (up to rounding), or names in
`unsupported` what it cannot do. torch supports everything and is the fallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from heedful.data.progress import ProgressCallback as ProgressCallback
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import SearchSettings

TokenIds = Sequence[int]
Results = list[list[Hypothesis]]
"""The hypotheses of each text, best first."""


def ignore_progress(done: int) -> None:
    """The default progress callback."""


@dataclass(frozen=True)
class SupportQuery:
    """What `Backend.unsupported` judges: the settings, and the size of a batch (0 texts: settings alone)."""

    settings: SearchSettings
    texts: int = 0
    longest: int = 0
    """Tokens of the longest source or prompt."""


@runtime_checkable
class Backend(Protocol):
    """Searches for translations of sources and continuations of prompts."""

    name: str

    def unsupported(self, request: SupportQuery) -> str | None:
        """Why this backend cannot serve the request; None = it can."""

    def translate(
        self,
        sources: Sequence[TokenIds],
        settings: SearchSettings,
        *,
        prefixes: Sequence[TokenIds] | None = None,
        max_lengths: Sequence[int] | None = None,
        progress: ProgressCallback = ignore_progress,
    ) -> Results:
        """The `n_best` hypotheses of each source, in order. `prefixes` are forced; `max_lengths` are per source."""

    def generate(
        self, prompts: Sequence[TokenIds], settings: SearchSettings, *, progress: ProgressCallback = ignore_progress
    ) -> Results:
        """The `n_best` continuations of each prompt, in order. An empty prompt begins a new document."""

    def stream(self, prompt: TokenIds, settings: SearchSettings) -> Iterator[int]:
        """The tokens after one prompt, each as soon as it is chosen; one hypothesis, greedy or sampled."""
