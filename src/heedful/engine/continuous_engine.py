"""ContinuousEngine: many clients' requests to many models, queued fairly, batched continuously, answered as tickets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from threading import Condition

import torch

from heedful.device import select_device
from heedful.engine.engine_request import EngineRequest, Job, ServedModel, check_task
from heedful.engine.fair_queue import FairQueue
from heedful.engine.job_runner import JobRunner, Observe
from heedful.engine.micro_batches import MicroBatches
from heedful.engine.request_threads import RequestThreads
from heedful.engine.routing import LaneName, Routes
from heedful.engine.ticket import EngineClosedError, QueueFullError, Ticket
from heedful.errors import UsageError, nearest
from heedful.inference.trained_model import TrainedModel

UNBATCHED_THREADS = 2
"""Calls and interventions that run at once, beside the batches."""
GPU_WORKERS = 2
"""Workers of a GPU, which runs one batch at a time: the second prepares the next one meanwhile."""


@dataclass(frozen=True)
class ModelStats:
    """Counts of a model's requests since it was added."""

    requests: int
    texts: int
    tokens: int
    failures: int


@dataclass(frozen=True)
class EngineStats:
    """Texts that wait and that are being processed, and the counts of each model."""

    queued: int
    active: int
    models: dict[str, ModelStats]


class ContinuousEngine:
    """Serves requests to several models. `submit` returns at once; results come by the ticket.

    `queue_limit`: texts that may wait, beyond which `submit` raises QueueFullError. `active_limit`: texts decoded
    together step by step. `device`: where the models are.
    """

    def __init__(
        self,
        *,
        queue_limit: int = 1024,
        active_limit: int = 64,
        device: str | torch.device = "auto",
        observe: Observe | None = None,
    ) -> None:
        self.models: dict[str, Routes] = {}
        self.runner, threads = JobRunner(observe), torch.get_num_threads()
        self.batch_workers = GPU_WORKERS if select_device(device).type == "cuda" else threads
        self.queues: dict[LaneName, FairQueue] = {
            lane: FairQueue(queue_limit) for lane in ("micro_batch", "continuous", "unbatched")
        }
        batches = MicroBatches(self.queues["micro_batch"], self.runner, self.batch_workers, threads)
        continuous = RequestThreads(
            self.queues["continuous"], JobRunner(observe, shares_steps=True), active_limit, "request"
        )
        unbatched = RequestThreads(self.queues["unbatched"], JobRunner(observe), UNBATCHED_THREADS, "unbatched")
        self.lanes = (batches, continuous, unbatched)
        self._pending: set[Ticket] = set()
        self._ended, self._open = Condition(), True
        for lane in self.lanes:
            lane.start()

    def add_model(self, name: str, trained: TrainedModel, *, int8: bool = False) -> Routes:
        """Serve a model under this name. Requests accepted before for a model of this name keep the old one."""
        self.models[name] = routes = Routes(ServedModel(name, trained), int8=int8, workers=self.batch_workers)
        return routes

    def submit(self, request: EngineRequest, routes: Routes | None = None) -> Ticket:
        """Queue a request. Raises UsageError for one that cannot be served, QueueFullError, EngineClosedError.

        `routes`: those of the model that is meant, if it may have been replaced under its name meanwhile.
        """
        if not self._open:
            raise EngineClosedError("the engine is shutting down")
        routes = routes or self.models.get(request.model)
        if routes is None:
            raise UsageError(f"no model {request.model!r:.60} is served; {nearest(request.model, self.models)}")
        check_task(routes.served.trained, request)
        lane, options, group = routes.route(request)
        texts = [None] if request.task == "call" else request.texts
        ticket = Ticket(len(texts), request.deadline, partial(self._finished, routes.served, len(texts)))
        served, model = routes.served, routes.model(lane)
        jobs = [Job(served, model, request, options, text, index, ticket, group) for index, text in enumerate(texts)]
        if not jobs:
            return ticket
        self._pending.add(ticket)
        try:
            self.queues[lane].put(jobs)
        except QueueFullError as error:
            self._pending.discard(ticket)
            raise error
        return ticket

    def stats(self) -> EngineStats:
        """The numbers of texts that wait and that are being processed, and the counts of each model."""
        served = [routes.served for routes in list(self.models.values())]
        return EngineStats(
            sum(map(len, self.queues.values())),
            sum(lane.runner.active for lane in self.lanes),
            {model.name: ModelStats(model.requests, model.texts, model.tokens, model.failures) for model in served},
        )

    def heartbeat(self) -> float:
        """Seconds since the slowest busy worker last made progress; 0 when idle, infinite once a worker has died."""
        batches, _, unbatched = self.lanes
        if not all(lane.is_alive for lane in self.lanes) and self._open:
            return math.inf
        stepping = [model.continuous for model in list(self.models.values()) if model.continuous]
        busy = max(batches.runner.busy_seconds(), unbatched.runner.busy_seconds())
        return max([busy, *(continuous.busy_seconds() for continuous in stepping)])

    def drain(self, timeout: float | None = None) -> bool:
        """Accept no more requests and wait for those accepted; whether all have ended within `timeout` seconds."""
        self._open = False
        with self._ended:
            return self._ended.wait_for(lambda: not self._pending, timeout)

    def close(self) -> None:
        """Accept no more requests, cancel those that are not done, and stop the workers."""
        self._open = False
        for ticket in list(self._pending):
            ticket.fail(EngineClosedError("the engine was closed"))
        for queue in self.queues.values():
            queue.close()

    def _finished(self, served: ServedModel, texts: int, ticket: Ticket) -> None:
        with self._ended:
            self._pending.discard(ticket)
            served.requests += 1
            served.texts += texts
            served.failures += ticket.failed
            self._ended.notify_all()
