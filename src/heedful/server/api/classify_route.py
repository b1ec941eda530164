"""POST /api/v1/classify."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.server.api.request_fields import PROBLEMS, ModelRequest, results_response
from heedful.server.serving import Serving
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/api/v1", tags=["tasks"], responses=PROBLEMS, route_class=TaskRoute)


class ClassifyRequest(ModelRequest):
    """Texts to classify."""

    text: str | list[str | tuple[str, str]] = Field(description="A text, or a list of texts or pairs of texts.")
    top: int | None = Field(default=None, ge=1, description="Number of classes, most probable first; null: all.")


class ClassifiedTextJson(BaseModel):
    """A text's class or classes, with the probabilities of all."""

    text: str | list[str]
    label: str | list[str]
    probabilities: dict[str, float]
    warnings: tuple[str, ...] = ()


class ClassifyResponse(BaseModel):
    """One result per text."""

    model: str
    results: list[ClassifiedTextJson]


@router.post("/classify", response_model=ClassifyResponse)
async def classify(request: Request, body: ClassifyRequest) -> Response:
    """Classify texts, or pairs of texts."""
    serving = Serving.of(request)
    texts = [body.text] if isinstance(body.text, str) else list(body.text)
    served = serving.model(body.model, "classify")
    body.check_interventions(serving.limits)
    serving.check_texts([part for text in texts for part in ((text,) if isinstance(text, str) else text)])
    results = await serving.run(request, served, "classify", texts, {"interventions": body.interventions})
    return results_response(served.name, [result.to_json(body.top) for result in results])
