"""Tickets: the pending results of one request. The engine completes a ticket; its holder waits, streams or cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition, local
from typing import Any

from heedful.errors import HeedfulError


class QueueFullError(HeedfulError):
    """Too many requests are waiting; `retry_after` is when to try again, in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClosedError(HeedfulError):
    """The engine no longer accepts requests."""


class DeadlineExceededError(HeedfulError):
    """A request was not complete by its deadline."""


class RequestCancelledError(HeedfulError):
    """A request was cancelled before it was complete."""


Listener = tuple[asyncio.AbstractEventLoop, asyncio.Event]
"""An event, and the loop in which it is set."""
TIMER_SECONDS = 0.005
"""Added to timers, so that the deadline has passed when they fire: uvloop's are early by up to 2 ms."""


class _Postponed(local):
    """Listeners of this thread's tickets that are to be woken later; None: at once."""

    listeners: list[Listener] | None = None


_postponed = _Postponed()


@contextmanager
def wake_together() -> Iterator[None]:
    """Wake event loops once for all tickets that change inside; each time costs a system call."""
    listeners: list[Listener] = []
    _postponed.listeners = listeners
    try:
        yield
    finally:
        _postponed.listeners = None
        wake(listeners)


def wake(listeners: Sequence[Listener]) -> None:
    """Set each event in its loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for loop, event in listeners:
        by_loop.setdefault(loop, []).append(event)
    for loop, events in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nothing waits
            loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        event.set()


class Ticket:
    """The results of one request, one per text, and for a stream the pieces of text generated so far."""

    def __init__(
        self, texts: int, deadline: float | None = None, on_done: Callable[[Ticket], object] = lambda _: None
    ) -> None:
        self.deadline = deadline
        """Deadline of the request, on the clock of `time.monotonic`."""
        self._on_done = on_done
        self._condition = Condition()
        self._results: dict[int, Any] = {}
        self._texts = texts
        self._pieces: list[str] = []
        self._error: BaseException | None = None
        self._listeners: list[Listener] = []

    @property
    def is_done(self) -> bool:
        """Whether all results are there, or an error."""
        return self._error is not None or len(self._results) == self._texts

    @property
    def is_over(self) -> bool:
        """Whether nothing more needs to be computed: done, cancelled or past the deadline."""
        return self.is_done or self._remaining() == 0.0

    def put(self, index: int, result: Any) -> None:
        """Store the result of one text; ignored once the ticket is done."""
        with self._condition:
            if self.is_done:
                return
            self._results[index] = result
            done = self.is_done
        if done:
            self._finish()

    def put_piece(self, piece: str) -> None:
        """Store the next piece of a stream."""
        self._pieces.append(piece)
        self._notify()

    def fail(self, error: BaseException) -> None:
        """End the request with an error, unless it is done."""
        with self._condition:
            if self.is_done:
                return
            self._error = error
        self._finish()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def cancel(self) -> None:
        """Cancel the request: it leaves the queue, or its slot at the next decode step."""
        self.fail(RequestCancelledError("the request was cancelled"))

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for the results; raises the request's error, or TimeoutError if they are not there in time."""
        remaining = self._remaining()
        limit = min((seconds for seconds in (timeout, remaining) if seconds is not None), default=None)
        with self._condition:
            done = self._condition.wait_for(lambda: self.is_done, limit)
        if not done and limit != remaining:
            raise TimeoutError(f"no result within {limit:g} s")
        return self._outcome()

    async def wait(self) -> list[Any]:
        """Wait for the results in an event loop; cancelling the task that waits cancels the request."""
        changed, remaining = self._listen(), self._remaining()
        loop = asyncio.get_running_loop()
        timer = None if remaining is None else loop.call_later(remaining + TIMER_SECONDS, changed.set)
        try:
            while not self.is_over:
                await changed.wait()
                changed.clear()
        except BaseException:
            self.cancel()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._outcome()

    def pieces(self) -> Iterator[str]:
        """The pieces of a stream as they come; closing the iterator cancels the request."""
        read = 0
        try:
            while True:
                new = self._wait_for_pieces(read)
                yield from new
                read += len(new)
                if not new:
                    self._outcome()
                    return
        finally:
            self.cancel()

    async def stream(self) -> AsyncIterator[str]:
        """The same in an event loop."""
        changed, read = self._listen(), 0
        try:
            while True:
                changed.clear()
                over = self.is_over  # before the pieces are read: none comes after that
                new = self._pieces[read:]
                for piece in new:
                    yield piece
                read += len(new)
                if not new:
                    if over:
                        self._outcome()
                        return
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), self._remaining())
        finally:
            self.cancel()

    def _wait_for_pieces(self, read: int) -> list[str]:
        """The pieces after the first `read`; none once the stream has ended or its deadline has passed."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_done or len(self._pieces) > read, self._remaining())
        return self._pieces[read:]

    def _outcome(self) -> list[Any]:
        if not self.is_done:
            self.fail(DeadlineExceededError("the request was not complete by its deadline"))
        if self._error is not None:
            raise self._error
        return [self._results[index] for index in range(self._texts)]

    def _remaining(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _listen(self) -> asyncio.Event:
        """An event of the running loop that is set whenever the ticket changes."""
        changed = asyncio.Event()
        self._listeners.append((asyncio.get_running_loop(), changed))
        if self.is_done or self._pieces:
            changed.set()
        return changed

    def _finish(self) -> None:
        self._on_done(self)
        self._notify()

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()
        if _postponed.listeners is None:
            wake(self._listeners)
        else:
            _postponed.listeners += self._listeners
