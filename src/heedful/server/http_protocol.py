"""The HTTP protocol with deadlines: uvicorn closes idle connections, but waits for a slow request without end.

A client has `READ_SECONDS` to send a whole request, from its first byte, or from connecting. Headers, the framing of
chunks and trailers are limited in size; trailers are dropped. A client that does not read its response is disconnected.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

READ_SECONDS = 10.0
"""From the first byte of a request to its last."""
TIMER_PRECISION = 0.01
"""A timer may fire this much early."""
WRITE_SECONDS = 30.0
"""How long a response may wait for its client to read."""
MAX_HEADER_BYTES = 32 << 10
"""Of a request, beside its body."""
CHUNK_OVERHEAD = 8
"""Bytes that may be sent for each byte of a body, the byte included: even chunks of one byte need six."""


class DeadlineProtocol(HttpToolsProtocol):
    """HTTP/1.1 by httptools, with a deadline for reading a request and one for a stalled reader."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_until: float | None = None
        """When the request that is being read must be complete, in the loop's time."""
        self._read_timer: TimerHandle | None = None
        """One timer that is set again when it fires: cheaper than a new timer for every request."""
        self._write_deadline: TimerHandle | None = None
        self._overhead = 0
        """Bytes of the request beside its body, less the framing that its chunks may need."""
        self._in_headers = True

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadlines()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._read_until is None and self._in_headers:
            self._await_request()
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MAX_HEADER_BYTES:
            self._close_with(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # not after the body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers, self._overhead = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead -= CHUNK_OVERHEAD * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_headers, self._overhead = True, 0
        self._read_until = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _await_request(self) -> None:
        self._read_until = self.loop.time() + READ_SECONDS
        if self._read_timer is None:
            self._read_timer = self.loop.call_at(self._read_until, self._check_read_deadline)

    def _check_read_deadline(self) -> None:
        """Close the connection if its request is late; else set the timer to the deadline of the present request."""
        self._read_timer = None
        if self._read_until is None:
            return
        if self.loop.time() < self._read_until - TIMER_PRECISION:
            self._read_timer = self.loop.call_at(self._read_until, self._check_read_deadline)
        else:
            self._close_with(408)

    def _close_with(self, status: int) -> None:
        """Close the connection; if no response has begun, with a status."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def _cancel_deadlines(self) -> None:
        for timer in (self._read_timer, self._write_deadline):
            if timer is not None:
                timer.cancel()
        self._read_timer = self._write_deadline = None
