"""Routes for training from the page: files, the doctor, the plan, runs, and corrections to learn from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request, Response
from pydantic import Field

from heedful import __version__
from heedful.errors import UsageError
from heedful.server.api.request_fields import PROBLEMS, ApiModel, json_response
from heedful.server.error_responses import RequestError
from heedful.server.serving import Serving
from heedful.studio.corrections import add_correction, fine_tuning_arguments, read_corrections
from heedful.studio.recorded_texts import example_texts
from heedful.studio.training_runs import TrainingRuns
from heedful.studio.workspace import CORRECTIONS_FILE
from heedful.training.tasks import TASKS

router = APIRouter(prefix="/api/v1/studio", tags=["studio"], responses=PROBLEMS)
MAX_PASTED = 800_000
KINDS = {"translate": "pairs", "classify": "labels", "answer": "questions"}
"""The kind of file that the doctor expects for a task; the other tasks take running text."""


class PastedText(ApiModel):
    """Text to keep as a file."""

    name: str = Field(max_length=64)
    text: str = Field(min_length=1, max_length=MAX_PASTED)


class RunRequest(ApiModel):
    """A run to start: task, files and time."""

    name: str = Field(default="", max_length=64)
    task: str = "translate"
    files: list[str] = Field(default=[], max_length=8)
    valid: list[str] = Field(default=[], max_length=8)
    time: str = Field(default="2m", max_length=16, pattern=r"^[0-9.]+[smhd]?([0-9.]+[smhd])*$")
    architecture: str = Field(default="transformer", pattern="^(transformer|recurrent)$")
    demo: bool = False


class Correction(ApiModel):
    """A text and the answer it should have had."""

    model: str
    source: str = Field(min_length=1, max_length=20_000)
    target: str = Field(min_length=1, max_length=20_000)


class ImproveRequest(ApiModel):
    """A model to fine-tune on the corrections."""

    model: str
    time: str = Field(default="1m", max_length=16, pattern=r"^[0-9.]+[smhd]?([0-9.]+[smhd])*$")


def training_runs(request: Request) -> TrainingRuns:
    """The runs of this studio; a server that was not given a folder to train in refuses."""
    runs: TrainingRuns | None = getattr(request.app.state, "training_runs", None)
    if runs is None:
        raise RequestError(403, "this server does not train; start it with heedful studio on your own machine")
    return runs


@router.get("")
async def studio_features(request: Request) -> Response:
    """Describe this studio: its version, whether it can train, and example texts of its models."""
    runs: TrainingRuns | None = getattr(request.app.state, "training_runs", None)
    folder = None if runs is None else runs.workspace.folder.resolve().name
    served = Serving.of(request).registry.served
    examples = {name: example_texts(model.trained.folder) for name, model in served.items()}
    return json_response({"version": __version__, "canTrain": runs is not None, "folder": folder, "examples": examples})


@router.get("/files")
async def files(request: Request) -> Response:
    """The text files that can be chosen."""
    return json_response({"files": await asyncio.to_thread(training_runs(request).workspace.files)})


@router.post("/files")
async def paste(request: Request, body: PastedText) -> Response:
    """Keep pasted text as a file that can be chosen."""
    return json_response({"name": training_runs(request).workspace.save_pasted(body.name, body.text)})


@router.post("/doctor")
async def doctor(request: Request, body: RunRequest) -> Response:
    """Examine files by the doctor: findings with line numbers."""
    runs = training_runs(request)
    paths = _paths(runs, body.files)
    kind = ["--as", KINDS[body.task]] if body.task in KINDS else []
    return json_response(await asyncio.to_thread(runs.run_command, ["doctor", *paths, *kind]))


@router.post("/plan")
async def plan(request: Request, body: RunRequest) -> Response:
    """The forecast of a run: parameters, memory, time."""
    runs = training_runs(request)
    return json_response(await asyncio.to_thread(runs.run_command, ["plan", *_arguments(runs, body)]))


@router.get("/runs")
async def list_runs(request: Request) -> Response:
    """All runs in the folder, the newest first."""
    runs = training_runs(request)
    served = Serving.of(request).registry.names()
    listed = await asyncio.to_thread(runs.all_runs)
    return json_response({"runs": [{**run, "served": run["name"] in served} for run in listed]})


@router.post("/runs")
async def start(request: Request, body: RunRequest) -> Response:
    """Start a run."""
    runs = training_runs(request)
    name = body.name or _free_name(runs.workspace.folder, "dates" if body.demo else body.task)
    begin: Callable[[], None] = (
        (lambda: runs.start_demo(name)) if body.demo else (lambda: runs.start(name, _arguments(runs, body)))
    )
    await asyncio.to_thread(begin)
    return json_response({"name": name})


@router.get("/runs/{name}")
async def follow(request: Request, name: str, after: int = 0) -> Response:
    """The events of a run since number `after`."""
    return json_response(await asyncio.to_thread(training_runs(request).follow, name, max(0, after)))


@router.post("/runs/{name}/stop")
async def stop(request: Request, name: str) -> Response:
    """Save and stop a run; it can be resumed."""
    training_runs(request).stop(name)
    return json_response({"name": name})


@router.post("/runs/{name}/resume")
async def resume(request: Request, name: str) -> Response:
    """Resume a run."""
    await asyncio.to_thread(training_runs(request).resume, name)
    return json_response({"name": name})


@router.post("/runs/{name}/serve")
async def serve(request: Request, name: str) -> Response:
    """Serve the model of a run in this studio."""
    folder, registry = training_runs(request).workspace.run_folder(name), Serving.of(request).registry
    if name not in registry.names():
        await asyncio.to_thread(registry.add, name, folder)
    return json_response({"name": name})


@router.get("/corrections/{model}")
async def corrections(request: Request, model: str) -> Response:
    """The number of corrected pairs of a model."""
    path = _corrections(training_runs(request), request, model)
    return json_response({"file": path.name, "pairs": len(read_corrections(path)) if path.is_file() else 0})


@router.post("/corrections")
async def correct(request: Request, body: Correction) -> Response:
    """Append a corrected pair to the file that `improve` learns from."""
    path = _corrections(training_runs(request), request, body.model)
    return json_response({"file": path.name, "pairs": add_correction(path, body.source, body.target)})


@router.post("/improve")
async def improve(request: Request, body: ImproveRequest) -> Response:
    """Fine-tune a model on its corrections, in a run of its own."""
    runs, served = training_runs(request), Serving.of(request).model(body.model)
    path = _corrections(runs, request, body.model)
    if not path.is_file():
        raise UsageError("there are no corrections of this model yet")
    if served.trained.folder is None:
        raise UsageError("this model has no folder to start from")
    pairs, name = read_corrections(path), _free_name(runs.workspace.folder, f"{body.model}-improved")
    learned = path.with_name(f"{name}.tsv")
    arguments = await asyncio.to_thread(fine_tuning_arguments, served.trained, pairs, learned)
    await asyncio.to_thread(runs.start, name, [*arguments, "--time", body.time])
    return json_response({"name": name, "pairs": len(pairs)})


def _arguments(runs: TrainingRuns, body: RunRequest) -> list[str]:
    if body.task not in TASKS:
        raise UsageError(f"there is no task of this name; choose one of {', '.join(TASKS)}")
    if not body.files:
        raise UsageError("choose a file to train on")
    valid = [part for path in _paths(runs, body.valid) for part in ("--valid", path)]
    return [
        body.task, *_paths(runs, body.files), *valid, "--time", body.time, "--model", body.architecture,
    ]  # fmt: skip


def _paths(runs: TrainingRuns, names: list[str]) -> list[str]:
    return [str(runs.workspace.resolve(name)) for name in names]


def _free_name(folder: Path, stem: str) -> str:
    return next(name for number in range(1, 10_000) if not (folder / (name := f"{stem}-{number}")).exists())


def _corrections(runs: TrainingRuns, request: Request, model: str) -> Path:
    served = Serving.of(request).model(model)
    if served.task != "translate":
        raise UsageError(f"{served.name} is not a translator: only pairs of text and translation are learned here")
    return runs.workspace.folder / f"{served.name}-{CORRECTIONS_FILE}"
