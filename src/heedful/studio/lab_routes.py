"""Routes for the studies of the lab: the list, running one, and its report."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from heedful.server.api.request_fields import PROBLEMS, ApiModel, json_response
from heedful.server.error_responses import RequestError
from heedful.studio.lab_runs import LabRuns

router = APIRouter(prefix="/api/v1/studio/studies", tags=["studio"], responses=PROBLEMS)


class StudyRequest(ApiModel):
    """How to run a study."""

    quick: bool = True


def lab_runs(request: Request) -> LabRuns:
    """The studies of this studio; a server that was not given a folder to work in refuses."""
    runs: LabRuns | None = getattr(request.app.state, "lab_runs", None)
    if runs is None:
        raise RequestError(403, "this server does not run studies; start it with heedful studio on your own machine")
    return runs


@router.get("")
async def list_studies(request: Request) -> Response:
    """Every study with its question and the outcomes of its predictions."""
    return json_response({"studies": await asyncio.to_thread(lab_runs(request).all_studies)})


@router.get("/{name}")
async def report(request: Request, name: str) -> Response:
    """The report of a study that has run."""
    return json_response(await asyncio.to_thread(lab_runs(request).report, name))


@router.post("/{name}/run")
async def run(request: Request, name: str, body: StudyRequest) -> Response:
    """Start a study, or the rest of an interrupted one."""
    runs = lab_runs(request)
    await asyncio.to_thread(lambda: runs.start(name, quick=body.quick))
    return json_response({"name": name})


@router.post("/{name}/stop")
async def stop(request: Request, name: str) -> Response:
    """Stop a study; its finished trials are kept."""
    await asyncio.to_thread(lab_runs(request).stop, name)
    return json_response({"name": name})
