"""RequestGuard: ASGI middleware that checks Host, Origin, token, content type, size and syntax of every request.

The checks of Host and Origin stop DNS rebinding and pages of other sites, the token stops other users. The body is read
here up to its limit, so that the application never holds a larger one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.server.error_responses import LIBRETRANSLATE_PATHS, RequestError, describe_error, error_response
from heedful.server.multipart_form import parse_multipart
from heedful.server.server_settings import ServerSettings
from heedful.server.strict_json import MalformedBodyError, parse_strict

WITHOUT_TOKEN = ("/health", "/ready")
"""For balancers and orchestrators; they reveal nothing but whether the server works."""
BODY_METHODS = ("POST", "PUT", "PATCH")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
MAX_FIELDS = 64
HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


class RequestGuard:
    """Passes a request on with its body in memory and parsed, or answers with an error.

    `public`: prefixes of paths that need no token, such as those of static pages.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, public: Collection[str] = ()) -> None:
        self.app, self.settings, self.public = app, settings, tuple(public)
        secret = settings.token.get_secret_value() if settings.token else None
        self._token = None if secret is None else _digest(secret)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            takes_key = scope["path"] in LIBRETRANSLATE_PATHS  # in the body, which is read for it
            if not takes_key:
                self._check_token(scope, headers)
            body = await self._read_body(scope, headers, receive)
            if takes_key:
                self._check_token(scope, headers)
        except RequestError as error:
            status, message, extra = describe_error(error, scope["path"])
            response = error_response(scope["path"], status, message, {"connection": "close", **extra})
            await response(scope, receive, send)
            return
        await self.app(scope, replay(body, receive), send)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
            raise RequestError(400, "the Host header must name one host")
        if self.settings.hosts is not None and host_name(hosts[0]) not in self.settings.hosts:
            raise RequestError(400, "this host name is not served; start the server with --allow-host NAME")
        origin = headers.get("origin")
        if origin is not None and origin_host(origin) != hosts[0].lower():
            raise RequestError(403, "pages of another origin may not use this server")

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        if self._token is None or scope["path"] in WITHOUT_TOKEN or self._is_public(scope["path"]):
            return
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        tokens = [presented.strip()] if scheme.lower() == "bearer" else []
        parsed = scope.get("parsed_body")
        if scope["path"] in LIBRETRANSLATE_PATHS and isinstance(parsed, dict):
            tokens.append(str(parsed.get("api_key") or ""))
        if not any(hmac.compare_digest(_digest(token), self._token) for token in tokens):
            raise RequestError(401, "a valid token is required", {"www-authenticate": "Bearer"})

    def _is_public(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix.rstrip('/')}/") for prefix in self.public)

    async def _read_body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        """Read and check the body, and store its parsed value in scope["parsed_body"]."""
        limits, length = self.settings.limits, headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > limits.body_bytes:
            raise RequestError(413, f"the body is larger than {limits.body_bytes:,} bytes")
        body = await read_bounded_body(receive, limits.body_bytes)
        takes_forms = scope["path"] in LIBRETRANSLATE_PATHS
        if scope["method"] not in BODY_METHODS and not (body and takes_forms):  # its client sends a key with GET
            return b""
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise RequestError(415, "compressed bodies are not supported: send the body without Content-Encoding")
        content_type = headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                scope["parsed_body"] = parse_strict(body, limits.json_depth, limits.json_values + limits.texts)
            elif kind == FORM and takes_forms:
                scope["parsed_body"] = parse_form(body)
            elif kind == MULTIPART and takes_forms:
                scope["parsed_body"] = parse_multipart(body, content_type)
            else:
                raise RequestError(415, "the content type must be application/json" + " or a form" * takes_forms)
        except MalformedBodyError as error:
            raise RequestError(400, str(error)) from None
        return body


async def read_bounded_body(receive: Receive, limit: int) -> bytes:
    """The whole body; RequestError as soon as it exceeds the limit, however it is sent."""
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(499, "the client has gone")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise RequestError(413, f"the body is larger than {limit:,} bytes")
        if not message.get("more_body"):
            return b"".join(chunks)


def replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that returns the body once, then the messages after it, such as the client's disconnect."""
    waiting = [body]

    async def receive_again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_again


def parse_form(body: bytes) -> dict[str, Any]:
    """The fields of a form; a field that is repeated is a list."""
    try:
        fields = parse_qs(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS, encoding="utf-8"
        )
    except ValueError:
        raise MalformedBodyError("the body is not a valid form in UTF-8") from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return name.lower()


def origin_host(origin: str) -> str:
    """Host and port of an Origin header; empty for one that names none, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
