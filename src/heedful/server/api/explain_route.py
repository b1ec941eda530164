"""POST /api/v1/explain."""

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


class ExplainRequest(ModelRequest):
    """An answer to attribute to the words of its text."""

    text: str
    target: str | None = Field(default=None, description="The answer to explain; null: the model's.")
    word: int | None = Field(default=None, ge=0, description="The output word to explain; null: every one.")
    methods: list[str] | None = Field(default=None, max_length=16, description="Attribution methods; null: all.")
    faithfulness: bool = Field(default=True, description="Measure each method's faithfulness on this text.")


class ExplainResponse(BaseModel):
    """Scores of the input's words for each output, by each method."""

    model: str
    task: str
    inputs: dict[str, Any]
    output_text: str
    outputs: list[dict[str, Any]]
    methods: list[dict[str, Any]]
    most_faithful: str
    unavailable: dict[str, str]
    perturbation: str
    faithfulness: dict[str, Any] | None
    validation: dict[str, Any] | None
    interventions: list[str]


@router.post("/explain", response_model=ExplainResponse)
async def explain(request: Request, body: ExplainRequest) -> Response:
    """Attribute an answer to the words of its text by several methods, with the faithfulness of each."""
    serving = Serving.of(request)
    served = serving.model(body.model)
    body.check_interventions(serving.limits)
    texts = [body.text] if body.target is None else [body.text, body.target]
    serving.check_texts(texts, characters=serving.limits.explain_characters)

    def answer(trained: TrainedModel) -> bytes:
        explanation = trained.explain(
            body.text, body.target, word=body.word, methods=body.methods, faithfulness=body.faithfulness,
            interventions=body.interventions,
        ).to_json()  # fmt: skip
        return to_json_bytes({**explanation, "model": served.name})

    return Response(await serving.call(request, served, "explain", texts, answer), media_type="application/json")
