"""The server with the studio's page and routes on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import RedirectResponse

from heedful.inference.trained_model import TrainedModel
from heedful.server.application import create_app
from heedful.server.server_settings import ServerSettings
from heedful.studio import inside_routes, lab_routes, measurement_routes, training_routes
from heedful.studio.lab_runs import LabRuns
from heedful.studio.training_runs import TrainingRuns
from heedful.studio.workspace import Workspace

PAGE = Path(__file__).parent / "static"
ADDRESS = "/studio/"
root = APIRouter()


@root.get("/", include_in_schema=False)
async def start_page() -> RedirectResponse:
    """Redirect the server's bare address to the page."""
    return RedirectResponse(ADDRESS)


def create_studio_app(
    models: Mapping[str, TrainedModel | Path] | Sequence[str | Path],
    settings: ServerSettings | None = None,
    *,
    workspace: Workspace | None = None,
    **options: Any,
) -> FastAPI:
    """Build the server with the page. With a workspace it can also train on files there, and run studies."""
    routers = (root, inside_routes.router, measurement_routes.router, training_routes.router, lab_routes.router)
    app = create_app(models, settings, routers=routers, static={ADDRESS.rstrip("/"): PAGE}, **options)
    app.state.training_runs = None if workspace is None else TrainingRuns(workspace)
    app.state.lab_runs = None if workspace is None else LabRuns(workspace.folder)
    return app
