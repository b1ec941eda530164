"""AccessLog: ASGI middleware that writes one JSON line for each request, without its texts, and sets safe headers."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from itertools import count
from secrets import token_hex
from typing import Any, BinaryIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.server.error_responses import error_response
from heedful.server.prometheus_metrics import ServerMetrics
from heedful.server.server_settings import ServerSettings
from heedful.server.strict_json import strings_in

SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
MAX_PATH = 200


class LogFile:
    """Writes log lines; a line that cannot be written is counted and dropped, so that a full disk stops no request."""

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.path, self.metrics = settings.log_file, metrics
        self.stream: FileIO | BinaryIO | None = None
        self._unfinished = False
        """Whether the last line was written only in part."""
        self.open()

    def open(self) -> None:
        """Open the file, again after it was renamed by a log rotation."""
        opened = sys.stderr.buffer if self.path is None else self.path.open("ab", buffering=0)
        self.close()
        self.stream, self._unfinished = opened, False

    def close(self) -> None:
        if self.path is not None and self.stream is not None:
            with suppress(OSError):  # the disk is full: the rest of the buffer is lost
                self.stream.close()
        self.stream = None

    def write(self, line: str) -> None:
        if self.stream is None:
            return
        content = b"\n" * self._unfinished + line.encode() + b"\n"
        written = 0
        with suppress(OSError, ValueError):
            written = self.stream.write(content) or 0
            self.stream.flush()
        if written < len(content):
            self.metrics.lost_log_lines.inc()
            self._unfinished = self._unfinished or written > 0
        else:
            self._unfinished = False


class AccessLog:
    """The outermost middleware: counts and logs each request, adds headers, and answers unexpected errors with 500."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics, log: LogFile) -> None:
        self.app, self.metrics, self.log, self.log_texts = app, metrics, log, settings.log_texts
        self._ids = map(f"{token_hex(5)}-{{:x}}".format, count())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, request_id, sent = time.perf_counter(), next(self._ids), {"status": 499, "bytes": 0}

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                names = {name for name, _ in message["headers"]}
                extra = [header for header in SECURITY_HEADERS if header[0] not in names]
                message["headers"] = [*message["headers"], *extra, (b"x-request-id", request_id.encode())]
            sent["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:
            self.metrics.report_failure(scope["path"], error)
            if sent["status"] == 499:
                response = error_response(scope["path"], 500, "internal error; the server's log has the details")
                await response(scope, receive, send_noted)
        finally:
            self._record(scope, request_id, sent, time.perf_counter() - start)

    def _record(self, scope: Scope, request_id: str, sent: dict[str, int], seconds: float) -> None:
        served = scope.get("served", {})
        route = getattr(scope.get("route"), "path", "")
        self.metrics.observe_request(served, route, sent["status"], seconds)
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": request_id,
            "client": scope["client"][0] if scope.get("client") else "",
            "method": scope["method"],
            "path": scope["path"][:MAX_PATH],
            "status": sent["status"],
            "seconds": round(seconds, 4),
            "bytes": sent["bytes"],
            **served,
        }
        if self.log_texts and "parsed_body" in scope:
            line["strings"] = [text for text in strings_in(scope["parsed_body"]) if text]
        self.log.write(json.dumps(line, ensure_ascii=True))
