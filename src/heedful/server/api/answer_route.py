"""POST /api/v1/answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.errors import UsageError
from heedful.server.api.request_fields import PROBLEMS, ModelRequest, Texts, as_list, results_response
from heedful.server.error_responses import RequestError
from heedful.server.serving import Serving
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/api/v1", tags=["tasks"], responses=PROBLEMS, route_class=TaskRoute)


class AnswerRequest(ModelRequest):
    """Questions about passages."""

    question: Texts
    passage: Texts = Field(description="The passage of all questions, or one for each.")
    top: int = Field(default=1, ge=1, description="Answers per question, best first.")
    threshold: float | None = Field(default=None, description="Below this score, there is no answer.")
    stride: int | None = Field(default=None, ge=0, le=10_000, description="Tokens between windows; 0 = no windows.")


class PassageSpan(BaseModel):
    """A part of a passage that may be the answer."""

    answer: str | None
    start: int | None
    end: int | None
    score: float
    probability: float


class AnsweredQuestion(PassageSpan):
    """The best answer, and others."""

    question: str
    alternatives: tuple[PassageSpan, ...] = ()


class AnswerResponse(BaseModel):
    """One result per question."""

    model: str
    results: list[AnsweredQuestion]


@router.post("/answer", response_model=AnswerResponse)
async def answer(request: Request, body: AnswerRequest) -> Response:
    """Extract answers from passages, with their positions."""
    serving, questions, passages = Serving.of(request), as_list(body.question), as_list(body.passage)
    served = serving.model(body.model, "answer")
    body.check_interventions(serving.limits)
    serving.check_texts(questions)
    serving.check_texts(passages)
    if isinstance(body.passage, str):
        passages *= len(questions)
    if len(passages) != len(questions):
        raise UsageError(f"{len(questions)} questions, but {len(passages)} passages")
    if body.top > serving.limits.results:
        raise RequestError(422, f"top: at most {serving.limits.results} is served")
    options = {"top": body.top, "threshold": body.threshold, "stride": body.stride}
    pairs = list(zip(questions, passages, strict=True))
    options["interventions"] = body.interventions  # type: ignore[assignment]
    results = await serving.run(request, served, "answer", pairs, options)
    return results_response(served.name, [result.to_json() for result in results])
