"""EventStream: server-sent events from a ticket, which is cancelled as soon as its client has gone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from heedful.engine.ticket import Ticket
from heedful.server.error_responses import describe_error, error_detail, without_content
from heedful.server.serving import Serving
from heedful.server.strict_json import to_json_bytes


def event(data: Any, name: str = "") -> bytes:
    """One server-sent event; `data` as JSON, which has no line breaks."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + to_json_bytes(data) + b"\n\n"


class EventStream(StreamingResponse):
    """A response of server-sent events. An error after the first piece is the last event."""

    def __init__(
        self, events: AsyncIterator[bytes], serving: Serving, ticket: Ticket, *, model: str, path: str
    ) -> None:
        super().__init__(self._guarded(events), media_type="text/event-stream")
        self.serving, self.ticket, self.model, self.path = serving, ticket, model, path
        self.content: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.content = scope.get("parsed_body")
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.ticket.cancel()

    async def _guarded(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The events, the first of which is timed; an error becomes an event."""
        start, first = time.perf_counter(), True
        try:
            async for sent in events:
                if first:
                    self.serving.metrics.first_token.labels(self.model).observe(time.perf_counter() - start)
                    first = False
                yield sent
        except Exception as error:
            status, message, _ = describe_error(error, self.path)
            if status == 500:
                self.serving.metrics.report_failure(self.path, error)
            yield event({"error": error_detail(self.path, status, without_content(message, self.content))}, "error")
