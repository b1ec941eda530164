"""Error answers: short, in the shape of the interface that was called, and without the request's content."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import takewhile
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from heedful.engine.ticket import DeadlineExceededError, EngineClosedError, QueueFullError, RequestCancelledError
from heedful.errors import DataError, HeedfulError, NonFiniteError, OutOfMemoryError, UsageError
from heedful.server.prometheus_metrics import ServerMetrics
from heedful.server.strict_json import strings_in, to_json_bytes

TYPES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "unprocessable",
    429: "overloaded",
    499: "cancelled",
    500: "internal_error",
    503: "unavailable",
}
OPENAI_PATHS = "/v1/"
OPENAI_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
"""Types of OpenAI's errors that are not `invalid_request_error`."""
OPENAI_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
LIBRETRANSLATE_PATHS = ("/translate", "/translate_file", "/detect", "/languages", "/frontend/settings")
MAX_MESSAGE = 400
LEAST_QUOTED = 8
"""Characters of a text that are enough to recognize its beginning in a message."""
DICTIONARIES = ("glossary", "logit_bias")
"""Fields whose keys are the request's."""
PART_NAME = re.compile(r"[\w.*\[\]?-]{1,80}")
"""Names of models, parts and options, which a message may repeat."""


class RequestError(HeedfulError):
    """A request that is answered with this status and message."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


class UnknownModelError(RequestError):
    """A request to a model that is not served."""

    def __init__(self, message: str) -> None:
        super().__init__(404, message)


def error_response(
    path: str, status: int, message: str, headers: Mapping[str, str] | None = None, *, unknown_model: bool = False
) -> Response:
    """An error in the shape of the interface that serves the path: LibreTranslate's, OpenAI's or ours."""
    body: dict[str, Any] = {"error": message[:MAX_MESSAGE]}
    if path not in LIBRETRANSLATE_PATHS:
        body = {"error": error_detail(path, status, message[:MAX_MESSAGE], unknown_model=unknown_model)}
    return Response(to_json_bytes(body), status, dict(headers or {}), "application/json")


def error_detail(path: str, status: int, message: str, *, unknown_model: bool = False) -> dict[str, Any]:
    """The fields of an error that OpenAI's clients and ours read; `param` and `code` are OpenAI's."""
    if not path.startswith(OPENAI_PATHS):
        return {"message": message, "type": TYPES.get(status, "error"), "param": None, "code": None}
    kind = OPENAI_TYPES.get(status, "invalid_request_error")
    code, param = ("model_not_found", "model") if unknown_model else (OPENAI_CODES.get(status), None)
    return {"message": message, "type": kind, "param": param, "code": code}


def describe_error(error: BaseException, path: str) -> tuple[int, str, dict[str, str]]:
    """Status, message and headers for an error of a request."""
    match error:
        case RequestError():
            return error.status, str(error), error.headers
        case QueueFullError():
            retry = {"retry-after": str(max(1, math.ceil(error.retry_after)))}
            return 429, "too many requests are waiting; try again later", retry
        case EngineClosedError():
            return 503, "the server is shutting down", {"retry-after": "1"}
        case DeadlineExceededError():
            return 503, "the request was not complete by its deadline", {"retry-after": "1"}
        case RequestCancelledError():
            return 499, "the request was cancelled", {}
        case UsageError() | DataError() | NonFiniteError():
            return status_of_mistake(path), str(error), {}
        case OutOfMemoryError():
            return 503, "not enough memory for this request: send fewer or shorter texts", {"retry-after": "1"}
    return 500, "internal error; the server's log has the details", {}


def status_of_mistake(path: str) -> int:
    """The status of a request that does not fit its schema, the model or the limits."""
    return 400 if path.startswith(OPENAI_PATHS) or path in LIBRETRANSLATE_PATHS else 422


def without_content(message: str, content: Any) -> str:
    """A message without the texts of the request: only names of models, parts and settings are repeated."""
    for text in sorted(_texts_in(content), key=len, reverse=True):
        for form in (repr(text)[1:-1], text):
            message = _without_quoted(message, form)
        if len(text) > 3 and not PART_NAME.fullmatch(text):
            message = message.replace(text, "…")
    return message.replace("\n", " ")


def _texts_in(content: Any) -> set[str]:
    """The strings of a request that are not names of fields, models, methods, parts or kinds of interventions."""
    names: list[Any] = []
    if isinstance(content, dict):
        interventions = content.get("interventions")
        changes = (
            [change for change in interventions if isinstance(change, dict)] if isinstance(interventions, list) else []
        )
        names = [*content, content.get("model"), content.get("methods")]
        names += [name for change in changes for name in (*change, change.get("part"), change.get("kind"))]
    return {*strings_in(content)} - {name for name in strings_in(names) if PART_NAME.fullmatch(name)} - {""}


def _without_quoted(message: str, text: str) -> str:
    """A message without a text that it quotes; a message may quote its beginning alone."""
    least, position = min(len(text), LEAST_QUOTED), 0
    if text[:least] not in message:  # so that thousands of texts are looked for quickly
        return message
    while match := re.compile(r"['\"]" + re.escape(text[:least])).search(message, position):
        start = match.start() + 1
        excerpt = message[start : start + common_length(message[start:], text)]
        end = start + len(excerpt if message.startswith(("'", '"'), start + len(excerpt)) else excerpt.rstrip())
        is_word = end - start < LEAST_QUOTED and message[end : end + 1] not in ("'", '"')
        position = end if is_word else start + 1
        quote = match.group()[0]
        closing = "" if message[end : end + 1] == quote else quote  # an excerpt may be cut before it
        message = message if is_word else f"{message[:start]}…{closing}{message[end:]}"
    return message


def common_length(one: str, other: str) -> int:
    """Characters at the beginning that two strings share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def validation_problems(errors: Sequence[Any]) -> str:
    """One line for the errors of a request that does not fit its schema: where and what, never the value."""
    lines = []
    for problem in errors[:5]:
        path = [str(part) for part in problem["loc"] if part != "body"]
        shown = [part if PART_NAME.fullmatch(part) else "…" for part in path]
        name = ".".join([*shown[:1], "…"] if path[:1] and path[0] in DICTIONARIES else shown)
        reason = problem.get("ctx", {}).get("error")
        text = str(reason) if problem["type"] == "value_error" and reason else str(problem["msg"]).lower()
        if problem["type"] == "extra_forbidden":
            text = "unknown setting"
        lines.append(f"{name}: {text}" if name else text)
    more = len(errors) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def install_error_handlers(app: FastAPI, metrics: ServerMetrics) -> None:
    """Answer every error of a handler in one shape."""

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        path = request.url.path
        message = without_content(validation_problems(error.errors()), request.scope.get("parsed_body"))
        return error_response(path, status_of_mistake(path), message)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase.lower() + "; /docs lists all paths" * (error.status_code == 404)
        return error_response(request.url.path, error.status_code, phrase, error.headers)

    async def known(request: Request, error: Exception) -> Response:
        status, message, headers = describe_error(error, request.url.path)
        if status == 500 and not isinstance(error, RequestError):  # which was reported when it arose
            metrics.report_failure(request.url.path, error)
        message = without_content(message, request.scope.get("parsed_body"))
        unknown_model = isinstance(error, UnknownModelError)
        return error_response(request.url.path, status, message, headers, unknown_model=unknown_model)

    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(HeedfulError, known)
