"""TaskRoute: a POST route whose body the request guard has parsed, answered without FastAPI's own request handler.

FastAPI's own handler reads and parses the body again, resolves dependencies and opens three exit stacks for each
request: a third of the application's time in the event loop, 0.16 against 0.10 ms for a translation.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class TaskRoute(APIRoute):
    """Calls `endpoint(request, body)`, or `endpoint(request)` if it declares no body. Other routes are FastAPI's."""

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        taken = self.dependant
        parameters = (taken.path_params, taken.query_params, taken.header_params, taken.cookie_params)
        if self.methods == {"POST"} and not any(parameters) and not taken.dependencies:
            self.app = self.respond

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if self.body_field is None:
            response = await self.endpoint(request)
        else:
            body, errors = self.body_field.validate(scope.get("parsed_body"), {}, loc=("body",))
            if errors:
                raise RequestValidationError(errors)
            response = await self.endpoint(request, body)
        await response(scope, receive, send)
