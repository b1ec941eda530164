"""Whether the process works, whether it may be sent requests, and its metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from heedful.server.serving import Serving
from heedful.server.strict_json import to_json_bytes

health_router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Whether requests should be sent here."""

    status: Literal["ready", "draining", "stuck", "no models"]


@health_router.get("/health")
async def health() -> Health:
    """Answers as long as the process does: for liveness probes."""
    return Health()


@health_router.get("/ready", response_model=Readiness, responses={503: {"model": Readiness}})
async def ready(request: Request) -> Response:
    """200 if requests should be sent here; 503 while shutting down, or if a worker makes no progress."""
    serving = Serving.of(request)
    status = "ready"
    if serving.draining:
        status = "draining"
    elif serving.engine.heartbeat() > serving.settings.stuck_after:
        status = "stuck"
    elif not serving.registry.served:
        status = "no models"
    return Response(to_json_bytes({"status": status}), 200 if status == "ready" else 503, None, "application/json")


@health_router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' format."""
    return Response(Serving.of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
