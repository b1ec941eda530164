"""Cancellation: work for a request that is over ends at its next decode step, or pass through the model."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from heedful.errors import HeedfulError


class WorkCancelledError(HeedfulError):
    """The request that a text belongs to was cancelled, or is past its deadline."""


def _never() -> bool:
    return False


REQUEST_IS_OVER: ContextVar[Callable[[], bool]] = ContextVar("request_is_over", default=_never)
"""Whether the request that the calling thread works for was cancelled, or is past its deadline."""


def raise_if_cancelled() -> None:
    """Raise WorkCancelledError if the request that the calling thread works for is over."""
    if REQUEST_IS_OVER.get()():
        raise WorkCancelledError("the request was cancelled, or is past its deadline")
