"""OpenAI's interface: /v1/models, /v1/completions, /v1/embeddings."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from heedful.engine.ticket import Ticket
from heedful.generation.results import Continuation
from heedful.generation.streaming import FinishReason, detokenize_stream
from heedful.server.api.request_fields import PROBLEMS, json_response
from heedful.server.error_responses import RequestError
from heedful.server.event_stream import EventStream, event
from heedful.server.model_registry import RegisteredModel
from heedful.server.openai_interface.completion_request import CompletionRequest
from heedful.server.openai_interface.token_scores import logprobs_json, score_continuation
from heedful.server.serving import Serving, note
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=PROBLEMS, route_class=TaskRoute)
LAST_EVENT = b"data: [DONE]\n\n"


class OpenAIModel(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "heedful"


class OpenAIModels(BaseModel):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class Usage(BaseModel):
    """Tokens read and generated."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class CompletionChoice(BaseModel):
    """One continuation."""

    text: str
    index: int
    finish_reason: FinishReason | None
    logprobs: dict[str, Any] | None


class Completion(BaseModel):
    """The continuations of all prompts."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class EmbeddingsRequest(BaseModel):
    """Texts to embed."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=200)
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: str | None = None


class OpenAIEmbedding(BaseModel):
    """A text's vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    """One vector per text."""

    object: Literal["list"] = "list"
    model: str
    data: list[OpenAIEmbedding]
    usage: Usage


@router.get("/models", response_model=OpenAIModels)
async def models(request: Request) -> OpenAIModels:
    """The models that are served."""
    return OpenAIModels(data=[_model(served) for served in Serving.of(request).registry.served.values()])


@router.get("/models/{name}", response_model=OpenAIModel)
async def model(request: Request, name: str) -> OpenAIModel:
    """One of the models."""
    return _model(Serving.of(request).model(name))


@router.post(
    "/completions",
    response_model=Completion,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue prompts."""
    serving, prompts = Serving.of(request), body.prompts
    body.check(serving.limits)
    served = serving.model(body.model, "generate")
    serving.check_texts(prompts)
    if len(prompts) * body.choices > serving.limits.texts:
        raise RequestError(400, f"at most {serving.limits.texts} choices are served at once")
    head = {
        "id": f"cmpl-{token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
    }
    by_piece = body.stream and len(prompts) * body.choices == 1 and body.logprobs is None and body.tokens
    if by_piece:
        note(request, served, "generate", prompts)
        ticket = await serving.submit(request, served, "generate", prompts, body.options(), stream=True)
        return EventStream(
            _events(ticket, body, served, head), serving, ticket, model=served.name, path="/v1/completions"
        )
    choices, usage = await _choices(request, serving, served, body)
    if body.stream:
        return Response(_whole_events(choices, usage, body, head), media_type="text/event-stream")
    return json_response({**head, "choices": choices, "usage": usage})


@router.post("/embeddings", response_model=EmbeddingsResponse)
async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """Embed texts as vectors."""
    serving, texts = Serving.of(request), [body.input] if isinstance(body.input, str) else list(body.input)
    served = serving.model(body.model)
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(400, "input: token ids are not supported; send text")
    if not texts:
        raise RequestError(400, "input: send a text, or a list of texts")
    serving.check_texts([str(text) for text in texts])
    width = served.trained.model.config.width
    if body.dimensions not in (None, width):
        raise RequestError(400, f"dimensions: this model's vectors have {width}")
    results = await serving.run(request, served, "embed", texts)
    data = []
    for index, result in enumerate(results):
        vector = result.vector.tolist()
        if body.encoding_format == "base64":
            vector = b64encode(np.ascontiguousarray(result.vector, "<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    tokens = _count_tokens(served, [str(text) for text in texts])
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    return json_response({"object": "list", "model": served.name, "data": data, "usage": usage})


async def _choices(
    request: Request, serving: Serving, served: RegisteredModel, body: CompletionRequest
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All choices of all prompts, and the tokens they took."""
    prompts = body.prompts
    results = [Continuation(prompt, "", 0.0, 0.0) for prompt in prompts]
    if body.tokens:
        results = await serving.run(request, served, "generate", prompts, body.options())
    choices: list[dict[str, Any]] = []
    generated = 0
    for result in results:
        samples: tuple[Continuation, ...] = (result, *result.alternatives)
        for index in range(body.choices):
            sample = samples[index % len(samples)]
            generated += sum(len(hypothesis.tokens) for hypothesis in sample.hypotheses)
            text = result.prompt + sample.text if body.echo else sample.text
            choice = {"text": text, "index": len(choices), "finish_reason": finish_reason(sample, body, served)}
            choices.append(
                {**choice, "logprobs": await _logprobs(request, serving, served, body, result.prompt, sample)}
            )
    return choices, _usage(_count_tokens(served, prompts), generated)


async def _logprobs(
    request: Request,
    serving: Serving,
    served: RegisteredModel,
    body: CompletionRequest,
    prompt: str,
    sample: Continuation,
) -> dict[str, Any] | None:
    if body.logprobs is None:
        return None
    tokens = [token for hypothesis in sample.hypotheses for token in hypothesis.tokens]
    top, echo = body.logprobs, bool(body.echo)
    scores = await serving.call(
        request, served, "score", [prompt], lambda trained: score_continuation(trained, prompt, tokens, top, echo=echo)
    )
    return logprobs_json(scores, len(prompt + sample.text))


def finish_reason(sample: Continuation, body: CompletionRequest, served: RegisteredModel) -> FinishReason:
    """Whether a text ended by itself or at a stop string, or was cut off at the limit of tokens."""
    tokens = [token for hypothesis in sample.hypotheses for token in hypothesis.tokens]
    if len(tokens) < body.tokens:
        return "stop"
    whole = detokenize_stream(tokens, served.trained.tokenizer, context=sample.prompt) if body.stop_strings else ()
    return "stop" if sum(map(len, whole)) > len(sample.text) else "length"


async def _events(
    ticket: Ticket, body: CompletionRequest, served: RegisteredModel, head: dict[str, Any]
) -> AsyncIterator[bytes]:
    """The pieces of one choice; the last event says why it ended."""
    (prompt,) = body.prompts
    if body.echo:
        yield _piece(prompt, head)
    async for piece in ticket.stream():
        yield _piece(piece, head)
    (end,) = ticket.result()
    yield _piece("", head, end.reason)
    if body.stream_options and body.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": _usage(_count_tokens(served, [prompt]), end.tokens)})
    yield LAST_EVENT


def _piece(text: str, head: dict[str, Any], finish: FinishReason | None = None) -> bytes:
    return event({**head, "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]})


def _whole_events(
    choices: list[dict[str, Any]], usage: dict[str, int], body: CompletionRequest, head: dict[str, Any]
) -> bytes:
    """A stream of several choices: one event each."""
    events = [event({**head, "choices": [choice]}) for choice in choices]
    if body.stream_options and body.stream_options.include_usage:
        events.append(event({**head, "choices": [], "usage": usage}))
    return b"".join([*events, LAST_EVENT])


def _count_tokens(served: RegisteredModel, texts: list[str]) -> int:
    return sum(map(len, served.trained.tokenizer.encode(texts)))


def _usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _model(served: RegisteredModel) -> OpenAIModel:
    return OpenAIModel(id=served.name, created=int(served.loaded_at))
