"""Metrics in Prometheus' format: requests, queue, batches, tokens and latencies by model."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from heedful.engine.continuous_engine import EngineStats
from heedful.engine.job_runner import BatchRecord

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "heedful_requests", "Requests answered.", ("model", "task", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "heedful_request_seconds", "Time from request to answer.", ("model", "task"), buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.first_token = Histogram(
            "heedful_first_piece_seconds", "Time to the first piece of a stream.", ("model",), buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.batches = Histogram(
            "heedful_batch_texts",
            "Texts of a batch, or decoded together.",
            ("model", "task"),
            buckets=TEXTS,
            registry=registry,
        )  # fmt: skip
        self.batch_seconds = Histogram(
            "heedful_batch_seconds", "Time of a batch.", ("model", "task"), buckets=SECONDS, registry=registry
        )
        self.failures = Counter("heedful_internal_errors", "Requests that ended in an unexpected error.",
                                registry=registry)  # fmt: skip
        self.lost_log_lines = Counter(
            "heedful_lost_log_lines", "Lines that the access log could not take.", registry=registry
        )
        self._request_counter, self._request_seconds = cache(self.requests.labels), cache(self.seconds.labels)

    def observe_batch(self, batch: BatchRecord) -> None:
        self.batches.labels(batch.model, batch.task).observe(batch.texts)
        self.batch_seconds.labels(batch.model, batch.task).observe(batch.seconds)

    def observe_request(self, served: dict[str, Any], route: str, status: int, seconds: float) -> None:
        model, task = served.get("model", ""), served.get("task", "")
        self._request_counter(model, task, route, status).inc()
        if model:
            self._request_seconds(model, task).observe(seconds)

    def report_failure(self, path: str, error: BaseException) -> None:
        """Count an unexpected error and print where it arose, without the values that it arose from."""
        self.failures.inc()
        frames = "".join(traceback.format_tb(error.__traceback__))
        print(f"heedful: internal error in {path:.80}: {type(error).__name__}\n{frames}", file=sys.stderr, flush=True)

    def follow(self, stats: Callable[[], EngineStats], heartbeat: Callable[[], float]) -> None:
        """Also report what the engine counts."""
        self.registry.register(_EngineCollector(stats, heartbeat))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Reads the engine's counts when the metrics are asked for."""

    def __init__(self, stats: Callable[[], EngineStats], heartbeat: Callable[[], float]) -> None:
        self.stats, self.heartbeat = stats, heartbeat

    def collect(self) -> Iterator[Any]:
        stats = self.stats()
        yield GaugeMetricFamily("heedful_queued_texts", "Texts that wait.", stats.queued)
        yield GaugeMetricFamily("heedful_active_texts", "Texts that are being processed.", stats.active)
        yield GaugeMetricFamily("heedful_busy_seconds", "Time since the slowest worker's progress.", self.heartbeat())
        texts = CounterMetricFamily("heedful_texts", "Texts processed.", labels=("model",))
        tokens = CounterMetricFamily("heedful_tokens", "Tokens generated.", labels=("model",))
        failures = CounterMetricFamily("heedful_failures", "Requests that failed.", labels=("model",))
        for name, model in stats.models.items():
            texts.add_metric((name,), model.texts)
            tokens.add_metric((name,), model.tokens)
            failures.add_metric((name,), model.failures)
        yield from (texts, tokens, failures)
