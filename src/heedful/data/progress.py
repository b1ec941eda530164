"""How far long work has got: whoever does it tells, stage by stage, and whoever called decides whether to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from heedful.data.line_reader import ProgressCallback

StartProgress = Callable[[str, int], AbstractContextManager[ProgressCallback]]
"""Opens a stage: what is done, and how many bytes or texts there are; it is told of them as they are done."""


@contextmanager
def no_progress(what: str, size: int) -> Iterator[ProgressCallback]:
    """A stage that nobody watches."""
    yield lambda count: None
