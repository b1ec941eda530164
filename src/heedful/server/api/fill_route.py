"""POST /api/v1/fill."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.server.api.request_fields import PROBLEMS, ModelRequest, Texts, as_list, results_response
from heedful.server.serving import Serving
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/api/v1", tags=["tasks"], responses=PROBLEMS, route_class=TaskRoute)


class FillRequest(ModelRequest):
    """Texts with [MASK] in the place of words."""

    text: Texts
    top: int = Field(default=5, ge=1, le=100, description="Guesses per mask.")


class MaskGuess(BaseModel):
    """A candidate word for a mask."""

    word: str
    probability: float


class FilledTextJson(BaseModel):
    """A text, the guesses for each of its masks, and the text with the best guess in each."""

    text: str
    guesses: list[list[MaskGuess]]
    filled: str


class FillResponse(BaseModel):
    """One result per text."""

    model: str
    results: list[FilledTextJson]


@router.post("/fill", response_model=FillResponse)
async def fill(request: Request, body: FillRequest) -> Response:
    """Predict the words at [MASK] positions."""
    serving, texts = Serving.of(request), as_list(body.text)
    served = serving.model(body.model, "fill")
    body.check_interventions(serving.limits)
    serving.check_texts(texts)
    options = {"top": body.top, "interventions": body.interventions}
    results = await serving.run(request, served, "fill", texts, options)
    return results_response(served.name, [result.to_json() for result in results])
