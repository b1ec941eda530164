"""Routing: choose the lane that serves a request, and check the request's options before it is queued."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from copy import copy
from typing import Any, Literal

from heedful.engine.engine_request import EngineRequest, EngineTask, ServedModel
from heedful.engine.served_backends import ServedBackends
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.select import Backends
from heedful.generation.continuous.continuous_backend import ContinuousBackend
from heedful.generation.decoding_config import DEFAULT_BEAM, DecodingConfig, prompt_decoding_config
from heedful.inference.trained_model import TrainedModel

LaneName = Literal["micro_batch", "continuous", "unbatched"]
"""Micro-batches; continuous batching; unbatched, in parallel with both."""
KEPT_ROUTES = 256
"""Cache size: sets of options whose lane is cached."""


class Routes:
    """Chooses the lane of each request to one model, and caches it for each set of options."""

    def __init__(self, served: ServedModel, *, int8: bool, workers: int) -> None:
        self.served, self.int8 = served, int8
        self.continuous: ContinuousBackend | None = None
        self._lanes: OrderedDict[Hashable, LaneName] = OrderedDict()
        backends = getattr(served.trained, "backends", None)
        if isinstance(backends, Backends):
            backends.ctranslate2.concurrent_calls = workers
            self.continuous = ContinuousBackend(backends)
            served.shared = _with_backends(served.trained, ServedBackends(backends, served.count, self.continuous))
            served.trained = _with_backends(served.trained, ServedBackends(backends, served.count))
            task: EngineTask = "translate" if hasattr(served.trained, "iter_translate") else "generate"
            self.route(EngineRequest(served.name, task))  # converts the model, if CTranslate2 serves it

    def route(self, request: EngineRequest) -> tuple[LaneName, Mapping[str, Any], Hashable]:
        """The lane, the options and the group of a request; UsageError for incompatible options."""
        options = {name: value for name, value in request.options.items() if value is not None}
        if request.task == "call" or "interventions" in options:
            return "unbatched", options, (id(self.served), "unbatched")
        if request.task not in ("translate", "generate"):
            return "micro_batch", options, (id(self.served), request.task, repr(sorted(options.items())))
        if self.int8:
            options = {"int8": True, **options}
        digest = hashlib.sha256(repr(sorted(options.items())).encode()).digest()  # a glossary may be long
        key = (id(self.served), request.task, request.stream, digest)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = self._lane(request, options)
            if len(self._lanes) > KEPT_ROUTES:
                self._lanes.popitem(last=False)
        return lane, options, key if lane == "micro_batch" else (id(self.served), lane)

    def model(self, lane: LaneName) -> TrainedModel:
        """The model that serves the requests of a lane."""
        return self.served.shared if lane == "continuous" and self.served.shared else self.served.trained

    def _lane(self, request: EngineRequest, options: dict[str, Any]) -> LaneName:
        backends: Backends = self.served.trained.backends  # type: ignore[attr-defined]
        translates = request.task == "translate"
        config = DecodingConfig(**options) if translates else prompt_decoding_config(options)
        settings = backends.settings(config, default_beam=DEFAULT_BEAM if translates else 1)
        search = SearchRequest(settings=settings)
        if settings.exact:
            return "unbatched"
        if request.stream:
            return "continuous"
        if self.continuous is None or self.continuous.unsupported(search) is not None:
            return "micro_batch"
        return "continuous" if backends.ctranslate2.unsupported(search) is not None else "micro_batch"


def _with_backends(trained: TrainedModel, backends: Backends) -> TrainedModel:
    """The same model, decoding by other backends."""
    changed: Any = copy(trained)
    changed.backends = backends
    served: TrainedModel = changed
    return served
