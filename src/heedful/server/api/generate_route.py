"""POST /api/v1/generate, whole or as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.engine.ticket import Ticket
from heedful.server.api.request_fields import (
    PROBLEMS,
    DecodingRequest,
    Generated,
    Texts,
    as_list,
    generated_json,
    results_response,
)
from heedful.server.error_responses import RequestError
from heedful.server.event_stream import EventStream, event
from heedful.server.serving import Serving, note
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/api/v1", tags=["tasks"], responses=PROBLEMS, route_class=TaskRoute)


class GenerateRequest(DecodingRequest):
    """Prompts to continue."""

    prompt: Texts = Field(default="", description="A prompt, or a list; an empty one starts a new document.")
    stream: bool = Field(default=False, description="Send pieces as they are generated: one prompt, one result.")


class ContinuedText(Generated):
    """A continuation with its alternatives."""

    prompt: str
    alternatives: tuple[Generated, ...] = ()
    warnings: tuple[str, ...] = ()


class GenerateResponse(BaseModel):
    """One continuation per prompt."""

    model: str
    results: list[ContinuedText]


@router.post(
    "/generate",
    response_model=GenerateResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def generate(request: Request, body: GenerateRequest) -> Response:
    """Continue prompts by sampling or search.

    With `stream`, server-sent events: `data: {"text": …}` for each piece, then `event: done`; `event: error` ends a
    stream that failed.
    """
    serving, prompts = Serving.of(request), as_list(body.prompt)
    served = serving.model(body.model, "generate")
    serving.check_texts(prompts)
    options = body.options(serving.limits)
    if not body.stream:
        results = await serving.run(request, served, "generate", prompts, options)
        return results_response(served.name, generated_json(results, served, tokens=body.token_probabilities))
    if len(prompts) != 1:
        raise RequestError(422, "a stream continues one prompt")
    note(request, served, "generate", prompts)
    ticket = await serving.submit(request, served, "generate", prompts, options, stream=True)
    return EventStream(_events(ticket), serving, ticket, model=served.name, path=request.url.path)


async def _events(ticket: Ticket) -> AsyncIterator[bytes]:
    async for piece in ticket.stream():
        yield event({"text": piece})
    yield event({}, "done")
