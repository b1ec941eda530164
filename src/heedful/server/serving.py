"""Serving: the registry, the engine and the limits that all routes share, and one way to run a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request

from heedful.engine.continuous_engine import ContinuousEngine
from heedful.engine.engine_request import EngineRequest, EngineTask
from heedful.engine.ticket import (
    DeadlineExceededError,
    EngineClosedError,
    QueueFullError,
    RequestCancelledError,
    Ticket,
)
from heedful.errors import HeedfulError, UsageError, nearest
from heedful.server.error_responses import RequestError, UnknownModelError
from heedful.server.model_registry import ModelRegistry, RegisteredModel
from heedful.server.prometheus_metrics import ServerMetrics
from heedful.server.server_settings import RequestLimits, ServerSettings

EXPECTED = (HeedfulError, DeadlineExceededError, EngineClosedError, QueueFullError, RequestCancelledError)
ENGINE_TASKS: tuple[EngineTask, ...] = ("translate", "generate", "classify", "fill", "answer", "embed")
SLOW_OPTIONS = ("stop", "forbidden", "glossary", "interventions")
"""Options that take a while to check, so that it is not done in the event loop."""


class Serving:
    """The models being served and how requests reach them; `Serving.of(request)` in a route."""

    def __init__(
        self, registry: ModelRegistry, engine: ContinuousEngine, settings: ServerSettings, metrics: ServerMetrics
    ) -> None:
        self.registry, self.engine, self.settings, self.metrics = registry, engine, settings, metrics
        self.draining = False

    @staticmethod
    def of(request: Request) -> Serving:
        serving: Serving = request.app.state.serving
        return serving

    @property
    def limits(self) -> RequestLimits:
        return self.settings.limits

    def model(self, name: str | None, task: str | None = None) -> RegisteredModel:
        """The model of this name, or the only one for the task; RequestError if there is none."""
        served = self.registry.served
        if name is None:
            names = self.registry.names(task)
            if len(names) == 1:
                return served[names[0]]
            problem = f"name a model: {', '.join(sorted(names))}" if names else f"no model that can {task} is served"
            raise RequestError(422, problem) if names else UnknownModelError(problem)
        if name not in served:
            raise UnknownModelError(f"no such model is served; {nearest(name, served)}")
        if task not in (None, "embed", served[name].task):
            raise UsageError(f"{name} is {served[name].trained.kind}, which cannot {task}")
        return served[name]

    def check_texts(self, texts: Sequence[str], *, characters: int | None = None) -> None:
        """Refuse too many texts, or too long ones."""
        limit = characters or self.limits.characters
        if len(texts) > self.limits.texts:
            raise RequestError(422, f"{len(texts):,} texts; at most {self.limits.texts:,} are served at once")
        if longest := max(map(len, texts), default=0) * (max(map(len, texts), default=0) > limit):
            raise RequestError(422, f"a text of {longest:,} characters; at most {limit:,} are served")

    async def submit(
        self,
        request: Request,
        served: RegisteredModel,
        task: EngineTask,
        texts: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        call: Callable[[Any], Any] | None = None,
    ) -> Ticket:
        """Queue a request; it is cancelled when its client disconnects, and expires at its deadline.

        A client's request that is queued in parts has one deadline, and one version of its model for all of them.
        """
        if self.draining:
            raise EngineClosedError("the server is shutting down")
        client = request.client.host if request.client else ""
        deadline = request.scope.setdefault("deadline", time.monotonic() + self.settings.deadline)
        job = EngineRequest(served.name, task, list(texts), options or {}, client, deadline, stream, call)
        if any(job.options.get(name) for name in SLOW_OPTIONS):
            return await asyncio.to_thread(self.engine.submit, job, served.routes)
        return self.engine.submit(job, served.routes)

    async def run(
        self, request: Request, served: RegisteredModel, task: EngineTask, texts: Sequence[Any],
        options: Mapping[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """The results of a request, one per text."""
        note(request, served, task, texts)
        return await self._outcome(request, await self.submit(request, served, task, texts, options))

    async def call(
        self, request: Request, served: RegisteredModel, name: str, texts: Sequence[str], function: Callable[[Any], Any]
    ) -> Any:
        """The result of a function of the trained model, run beside the batches; `name` is what the log calls it."""
        note(request, served, name, texts)
        ticket = await self.submit(request, served, "call", texts, call=function)
        return (await self._outcome(request, ticket))[0]

    async def _outcome(self, request: Request, ticket: Ticket) -> list[Any]:
        watch = asyncio.create_task(cancel_on_disconnect(request, ticket))
        try:
            return await ticket.wait()
        except EXPECTED:
            raise
        except Exception as error:
            self.metrics.report_failure(request.url.path, error)
            raise RequestError(500, "internal error; the server's log has the details") from None
        finally:
            watch.cancel()


def note(request: Request, served: RegisteredModel, task: str, texts: Sequence[Any]) -> None:
    """Note for the log and the metrics which model a request is for."""
    request.scope["served"] = {"model": served.name, "task": task, "texts": len(texts)}


async def cancel_on_disconnect(request: Request, ticket: Ticket) -> None:
    """Wait until the client has gone, then give its request up."""
    with suppress(Exception):
        while (await request.receive())["type"] != "http.disconnect":
            pass
    ticket.cancel()
