"""Request cancellation: a request that was cancelled or timed out stops at its next decode step or forward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from heedful.errors import HeedfulError


class WorkCancelledError(HeedfulError):
    """The request was cancelled, or is past its deadline."""


def _never() -> bool:
    return False


REQUEST_IS_OVER: ContextVar[Callable[[], bool]] = ContextVar("request_is_over", default=_never)
"""Whether the request that the calling thread serves was cancelled, or is past its deadline."""


def raise_if_cancelled() -> None:
    """Raise WorkCancelledError if the calling thread's request was cancelled, or is past its deadline."""
    if REQUEST_IS_OVER.get()():
        raise WorkCancelledError("the request was cancelled, or is past its deadline")
