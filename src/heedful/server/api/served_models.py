"""GET /api/v1/models, the parts of a model, and the schema of interventions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.interventions.kinds import interventions_schema
from heedful.interventions.parts import model_parts
from heedful.server.api.request_fields import PROBLEMS, json_response
from heedful.server.model_registry import RegisteredModel
from heedful.server.server_settings import RequestLimits
from heedful.server.serving import Serving

router = APIRouter(prefix="/api/v1", tags=["models"], responses=PROBLEMS)


class ModelDescription(BaseModel):
    """A model that is served."""

    name: str
    task: str
    kind: str = Field(description="In words: a translator, a classifier …")
    family: str
    parameters: int
    languages: tuple[str, str] | None = Field(description="What it translates from and to, where that is known.")
    labels: list[str] | None = Field(description="The classes of a classifier.")
    loaded: str = Field(description="When it was loaded, as ISO 8601.")
    problem: str | None = Field(description="Why the folder as it is now is not served; the model before it is.")


class ModelsResponse(BaseModel):
    """The models that are served, and the limits of requests."""

    models: list[ModelDescription]
    limits: RequestLimits


class ModelPart(BaseModel):
    """A part that an intervention can name."""

    name: str
    kind: str = Field(description="attention, cross-attention, feed-forward, skip, positions or tap")
    heads: int = Field(description="Number of heads; 0 for a part without heads.")
    head: int | None = Field(description="For a single head, its number.")


class PartsResponse(BaseModel):
    """The parts of a model, and its configuration."""

    model: str
    task: str
    config: dict[str, Any]
    has_means: bool = Field(description="Whether parts can be ablated to their mean value.")
    parts: list[ModelPart]


@router.get("/models", response_model=ModelsResponse)
async def models(request: Request) -> Response:
    """The models that are served."""
    serving = Serving.of(request)
    served = [model_description(model) for model in serving.registry.served.values()]
    return json_response({"models": served, "limits": serving.limits.model_dump()})


@router.get("/models/{name}/parts", response_model=PartsResponse)
async def parts(request: Request, name: str) -> Response:
    """The names of all parts of a model that an intervention can change, and the model's configuration."""
    served = Serving.of(request).model(name)
    model: Any = served.trained.model
    named = [
        {"name": part.name, "kind": part.kind, "heads": part.heads, "head": part.head}
        for part in model_parts(model).values()
    ]
    answer = {
        "model": served.name,
        "task": served.task,
        "config": model.config.model_dump(mode="json"),
        "has_means": served.trained.means is not None,
        "parts": named,
    }
    return json_response(answer)


@router.get("/interventions", response_model=dict[str, Any])
async def interventions() -> Response:
    """The JSON schema of a list of interventions."""
    return json_response(interventions_schema())


def model_description(served: RegisteredModel) -> dict[str, Any]:
    """The values of a `ModelDescription`."""
    trained: Any = served.trained
    names = trained.settings.names if served.task == "classify" else None
    return {
        "name": served.name,
        "task": served.task,
        "kind": trained.kind,
        "family": trained.model.config.family,
        "parameters": sum(weight.numel() for weight in trained.model.parameters()),
        "languages": list(served.languages) if served.languages else None,
        "labels": list(names) if names else None,
        "loaded": datetime.fromtimestamp(served.loaded_at, UTC).isoformat(timespec="seconds"),
        "problem": served.problem or None,
    }
