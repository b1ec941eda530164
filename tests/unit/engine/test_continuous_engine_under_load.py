"""Load and faults: cancelled streams, thousands of concurrent requests, stuck and dead workers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from heedful.engine.continuous_engine import ContinuousEngine
from heedful.engine.engine_request import EngineRequest
from heedful.engine.job_runner import BatchRecord
from heedful.engine.ticket import DeadlineExceededError, QueueFullError, RequestCancelledError
from heedful.generation.continuous.continuous_backend import ContinuousBackend
from heedful.inference.trained_model import TrainedModel

MakeTrained = Callable[..., TrainedModel]
ENDLESS = {"max_length": 100_000, "min_length": 100_000, "temperature": 0.0}


@pytest.fixture
def writer(make_trained: MakeTrained) -> TrainedModel:
    return make_trained("laptop-writer", max_length=64)


def wait_until(happened: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def decoder(engine: ContinuousEngine) -> ContinuousBackend:
    continuous = engine.models["m"].continuous
    assert continuous is not None
    return continuous


def searches(engine: ContinuousEngine) -> int:
    return sum(len(worker.searches) for worker in decoder(engine).workers)


def test_mixed_requests_to_several_models_equal_single_requests(
    engine: ContinuousEngine, make_trained: MakeTrained, texts: list[str]
) -> None:
    rng, pending = random.Random(1), []
    for family in ("laptop-translator", "laptop-writer", "recurrent-translator", "recurrent-writer"):
        trained: Any = make_trained(family)
        engine.add_model(family, trained)
        task = "translate" if "translator" in family else "generate"
        method = trained.iter_translate if task == "translate" else trained.iter_generate
        for _ in range(8):
            text, options = rng.choice(texts)[:20], {"max_length": rng.choice([5, 20])}
            options |= rng.choice([{"beam": 4}, {"beam": 1, "temperature": 0.0}, {"temperature": 0.7, "seed": 4}])
            ticket = engine.submit(EngineRequest(family, task, [text], options, client=str(rng.randrange(4))))  # type: ignore[arg-type]
            pending.append((ticket, next(method([text], **options)).text))
    for ticket, expected in pending:
        assert ticket.result(60.0)[0].text == expected
    assert engine.drain(10.0)
    stats = engine.stats()
    assert stats.queued == 0
    assert sum(model.texts for model in stats.models.values()) == 32
    assert all(model.tokens and not model.failures for model in stats.models.values())


@pytest.mark.parametrize("streams", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_cancelled_streams_free_their_slots(engine: ContinuousEngine, writer: TrainedModel, streams: int) -> None:
    engine.add_model("m", writer)
    for first in range(0, streams, 100):
        tickets = [
            engine.submit(EngineRequest("m", "generate", [""], ENDLESS, stream=True)) for _ in range(min(100, streams))
        ]
        wait_until(lambda: searches(engine) >= 48)
        if not first:
            next(tickets[0].pieces())  # closing the iterator cancels
        for ticket in tickets:
            ticket.cancel()
    wait_until(lambda: engine.stats().active == 0 and engine.stats().queued == 0 and searches(engine) == 0)
    assert engine.submit(EngineRequest("m", "generate", ["2"], {"max_length": 2})).result(10.0)


def test_a_cancelled_stream_ends_within_one_step(engine: ContinuousEngine, writer: TrainedModel) -> None:
    engine.add_model("m", writer)
    ticket = engine.submit(EngineRequest("m", "generate", [""], ENDLESS, stream=True))
    wait_until(lambda: searches(engine) == 1 and decoder(engine).workers[0].steps > 3)
    ticket.cancel()
    steps = decoder(engine).workers[0].steps
    with pytest.raises(RequestCancelledError):
        ticket.result(1.0)
    wait_until(lambda: engine.stats().active == 0)
    assert decoder(engine).workers[0].steps <= steps + 2


def test_reported_batch_sizes_include_texts_that_joined(writer: TrainedModel) -> None:
    records: list[BatchRecord] = []
    engine = ContinuousEngine(observe=records.append)
    engine.add_model("m", writer)
    options = {"max_length": 200, "min_length": 200, "temperature": 0.0}
    engine.submit(EngineRequest("m", "generate", ["2"] * 8, options)).result(60.0)
    wait_until(lambda: len(records) == 8)
    assert max(record.texts for record in records) == 8
    engine.close()


@pytest.mark.parametrize("lane", ["continuous", "unbatched"])
def test_a_deadline_ends_decoding(engine: ContinuousEngine, writer: TrainedModel, lane: str) -> None:
    engine.add_model("m", writer)
    options = {**ENDLESS, "exact": lane == "unbatched"}
    ticket = engine.submit(EngineRequest("m", "generate", [""], options, deadline=time.monotonic() + 0.2))
    with pytest.raises(DeadlineExceededError):
        ticket.result()
    wait_until(lambda: engine.stats().active == 0)
    assert searches(engine) == 0


def test_a_deadline_ends_an_explanation(engine: ContinuousEngine, writer: TrainedModel) -> None:
    """An explanation runs the model for each word and method; the deadline ends it at the next forward pass."""
    engine.add_model("m", writer)

    def explain(trained: Any) -> list[Any]:
        return [trained.explain("2 May 1980") for _ in range(10_000)]

    ticket = engine.submit(EngineRequest("m", "call", call=explain, deadline=time.monotonic() + 0.2))
    with pytest.raises(DeadlineExceededError):
        ticket.result()
    wait_until(lambda: engine.stats().active == 0)


def test_requests_beyond_the_queue_limit_are_refused_and_the_others_served(writer: TrainedModel) -> None:
    engine = ContinuousEngine(queue_limit=100)
    engine.add_model("m", writer)
    tickets, refused = [], list[float]()
    for number in range(600):
        try:
            tickets.append(engine.submit(EngineRequest("m", "generate", ["2"], {"max_length": 3, "seed": number})))
        except QueueFullError as error:
            refused.append(error.retry_after)
    assert min(refused) > 0
    assert all(len(ticket.result(60.0)) == 1 for ticket in tickets)
    assert engine.submit(EngineRequest("m", "generate", ["2"], {"max_length": 3})).result(10.0)
    engine.close()


def test_a_stuck_step_is_reported_until_it_continues(engine: ContinuousEngine, writer: Any) -> None:
    engine.add_model("m", writer)
    stuck, model = Event(), decoder(engine).workers[0].decoding_model

    def waiting() -> Any:
        stuck.wait(20.0)
        return model()

    decoder(engine).workers[0].decoding_model = waiting
    ticket = engine.submit(EngineRequest("m", "generate", ["2"], {"max_length": 2}))
    wait_until(lambda: engine.heartbeat() > 0.2)
    stuck.set()
    assert ticket.result(10.0)
    wait_until(lambda: engine.heartbeat() == 0.0)


def test_a_dead_worker_is_reported(engine: ContinuousEngine, writer: TrainedModel) -> None:
    engine.add_model("m", writer)
    assert engine.heartbeat() == 0.0
    engine.queues["continuous"].close()
    wait_until(lambda: engine.heartbeat() == math.inf)
