"""POST /api/v1/embed."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.server.api.request_fields import PROBLEMS, ModelRequest, Texts, as_list, results_response
from heedful.server.serving import Serving
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/api/v1", tags=["tasks"], responses=PROBLEMS, route_class=TaskRoute)


class EmbedRequest(ModelRequest):
    """Texts to embed, by any model."""

    text: Texts
    normalize: bool = Field(default=False, description="Scale vectors to length 1.")


class EmbeddedText(BaseModel):
    """A text's vector."""

    vector: list[float]
    warnings: tuple[str, ...] = ()


class EmbedResponse(BaseModel):
    """One vector per text."""

    model: str
    results: list[EmbeddedText]


@router.post("/embed", response_model=EmbedResponse)
async def embed(request: Request, body: EmbedRequest) -> Response:
    """Embed texts as vectors: the mean of the hidden states of their tokens."""
    serving, texts = Serving.of(request), as_list(body.text)
    served = serving.model(body.model, "embed")
    body.check_interventions(serving.limits)
    serving.check_texts(texts)
    options = {"normalize": body.normalize, "interventions": body.interventions}
    results = await serving.run(request, served, "embed", texts, options)
    rows = [{"vector": result.vector.tolist(), "warnings": list(result.warnings)} for result in results]
    return results_response(served.name, rows)
