"""POST /api/v1/look."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.inference.trained_model import TrainedModel
from heedful.server.api.request_fields import PROBLEMS, ModelRequest
from heedful.server.serving import Serving
from heedful.server.strict_json import to_json_bytes
from heedful.server.task_route import TaskRoute

router = APIRouter(prefix="/api/v1", tags=["inside"], responses=PROBLEMS, route_class=TaskRoute)


class LookRequest(ModelRequest):
    """A text to look at."""

    text: str
    target: str | None = Field(
        default=None,
        description="The translation, continuation, label or answer to look at; null: the model's, changed alike.",
    )
    top: int = Field(default=5, ge=1, le=50, description="Most probable labels at each output.")
    lens: bool = Field(default=False, description="Also what each layer would have answered.")


class LookResponse(BaseModel):
    """A `Look` as JSON. Attention weights: heads × rows × columns, little-endian float32 in base64."""

    model: str
    task: str
    inputs: dict[str, Any]
    target: dict[str, Any] | None
    outputs: list[dict[str, Any]]
    attention: list[dict[str, Any]]
    alignment: dict[str, Any] | None
    interventions: list[str]
    lens: dict[str, Any] | None = None


@router.post("/look", response_model=LookResponse)
async def look(request: Request, body: LookRequest) -> Response:
    """Look inside at one text: attention of every head, probabilities, alignment and logit lens."""
    serving = Serving.of(request)
    served = serving.model(body.model)
    body.check_interventions(serving.limits)
    texts = [body.text] if body.target is None else [body.text, body.target]
    serving.check_texts(texts, characters=serving.limits.look_characters)

    def answer(trained: TrainedModel) -> bytes:
        seen = trained.look(
            body.text, body.target, top=body.top, lens=body.lens, interventions=body.interventions
        ).to_json()
        return to_json_bytes({**seen, "model": served.name})

    return Response(await serving.call(request, served, "look", texts, answer), media_type="application/json")
