"""Progress callbacks for long work: the caller decides whether and how to show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

ProgressCallback = Callable[[int], object]
"""Called with the number of bytes or texts finished since the last call."""

StartProgress = Callable[[str, int], AbstractContextManager[ProgressCallback]]
"""Opens a stage with its description and total number of bytes or texts, and yields its callback."""


@contextmanager
def no_progress(description: str, total: int) -> Iterator[ProgressCallback]:
    """A stage that shows nothing."""
    yield lambda count: None
