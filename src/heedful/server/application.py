"""create_app: the ASGI application that serves trained models. It keeps no state of its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles

from heedful import __version__
from heedful.engine.continuous_engine import ContinuousEngine
from heedful.inference.trained_model import TrainedModel
from heedful.server.access_log import AccessLog, LogFile
from heedful.server.api.routes import API_ROUTERS
from heedful.server.error_responses import install_error_handlers
from heedful.server.health_routes import health_router
from heedful.server.language_pairs import LanguagePair
from heedful.server.libretranslate.translation_routes import router as libretranslate_router
from heedful.server.model_registry import ModelRegistry, Notice, named_folders
from heedful.server.openai_interface.completion_routes import router as openai_router
from heedful.server.prometheus_metrics import ServerMetrics
from heedful.server.request_guard import RequestGuard
from heedful.server.server_settings import ServerSettings
from heedful.server.serving import Serving

DOCUMENTATION = Path(__file__).parent / "documentation"


def create_app(
    models: Mapping[str, TrainedModel | Path] | Sequence[str | Path],
    settings: ServerSettings | None = None,
    *,
    device: str = "auto",
    int8: bool = False,
    languages: Mapping[str, LanguagePair] | None = None,
    routers: Sequence[APIRouter] = (),
    static: Mapping[str, Path] | None = None,
    notice: Notice = print,
) -> FastAPI:
    """Build the application: load the models, then serve them on every interface.

    `models`: folders, or models and folders by the names they are served under. `routers`: further routes, whose
    requests pass the same checks; `Serving.of(request)` gives them the models. `static`: folders of public files by the
    path they are served at. `notice` is called with each message for the operator.
    """
    settings = settings or ServerSettings()
    metrics = ServerMetrics()
    engine = ContinuousEngine(queue_limit=settings.queue, device=device, observe=metrics.observe_batch)
    registry = ModelRegistry(engine, device=device, int8=int8, languages=languages, notice=notice)
    try:
        for name, model in (models if isinstance(models, Mapping) else named_folders(models)).items():
            registry.add(name, model)
    except BaseException:
        engine.close()
        raise
    serving = Serving(registry, engine, settings, metrics)
    metrics.follow(engine.stats, engine.heartbeat)
    folders = {"/docs": DOCUMENTATION, **(static or {})}
    log = LogFile(settings, metrics)
    app = FastAPI(
        title="heedful",
        version=__version__,
        description="Trained transformer models: translate, generate, classify, fill, answer, embed, look inside.",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(AccessLog, settings=settings, metrics=metrics, log=log),
            Middleware(RequestGuard, settings=settings, public=("/openapi.json", *folders)),
        ],
    )
    app.state.serving, app.state.log = serving, log
    install_error_handlers(app, metrics)
    for router in (*API_ROUTERS, openai_router, libretranslate_router, health_router, *routers):
        app.router.routes += router.routes  # `include_router` would match every request twice
    for path, folder in folders.items():
        app.mount(path, StaticFiles(directory=folder, html=True), name=path.strip("/") or "root")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Watch the model folders while the application runs, and close the engine after it."""
    serving: Serving = app.state.serving
    # Hooks on modules import torch's compiler, for seconds: not during the first look or intervention.
    Thread(target=import_module, args=("torch._dynamo",), name="imports", daemon=True).start()
    serving.registry.watch(serving.settings.reload_every)
    try:
        yield
    finally:
        serving.draining = True
        serving.registry.close()
        serving.engine.close()
        app.state.log.close()
