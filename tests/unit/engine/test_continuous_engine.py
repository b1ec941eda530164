"""The engine returns the library's results whatever the load; queueing, cancellation, deadlines, failures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import heedful
from heedful.engine.continuous_engine import ContinuousEngine
from heedful.engine.engine_request import EngineRequest
from heedful.engine.job_runner import BatchRecord
from heedful.engine.ticket import (
    DeadlineExceededError,
    EngineClosedError,
    QueueFullError,
    RequestCancelledError,
    Ticket,
)
from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel

MakeTrained = Callable[..., TrainedModel]
PASSAGE = "The meeting is on Monday. It was on Friday before."


def assert_same(result: Any, expected: Any) -> None:
    """Equal texts and labels; scores equal up to rounding."""
    assert type(result) is type(expected)
    for name, value in vars(expected).items():
        actual = getattr(result, name)
        if isinstance(value, float):
            assert actual == pytest.approx(value, abs=1e-4), name
        elif name in ("text", "label", "filled", "warnings"):
            assert actual == value, name


@pytest.fixture
def translator(make_trained: MakeTrained) -> TrainedModel:
    return make_trained("laptop-translator")


def blocked(engine: ContinuousEngine, model: str) -> Event:
    """Occupy the request threads until the event is set."""
    event = Event()
    for _ in range(2):
        engine.submit(EngineRequest(model, "call", call=lambda _: event.wait(20)))
    return event


def test_every_task_equals_the_library(engine: ContinuousEngine, make_trained: MakeTrained, texts: list[str]) -> None:
    calls: list[tuple[str, str, dict[str, Any], Callable[[Any, str], Any]]] = [
        ("laptop-translator", "translate", {"beam": 4}, lambda m, t: next(m.iter_translate([t], beam=4))),
        ("laptop-writer", "generate", {"seed": 3}, lambda m, t: next(m.iter_generate([t], seed=3))),
        ("laptop-translator", "embed", {}, lambda m, t: next(m.iter_embed([t]))),
    ]
    pending: list[tuple[Ticket, Any]] = []
    for family, task, options, expected in calls:
        trained = make_trained(family)
        engine.add_model(f"{family}-{task}", trained)
        for text in random.Random(0).sample(texts, 20):
            ticket = engine.submit(EngineRequest(f"{family}-{task}", task, [text], options))  # type: ignore[arg-type]
            pending.append((ticket, expected(trained, text)))
    for ticket, answer in pending:
        (result,) = ticket.result(30.0)
        assert_same(result, answer)


@pytest.mark.parametrize(
    ("family", "task", "options"),
    [
        ("laptop-translator", "translate", {"beam": 4}),
        ("laptop-translator", "translate", {"stop": ("a",)}),
        ("laptop-translator", "translate", {"exact": True}),
        ("laptop-translator", "translate", {"temperature": 1.0, "seed": 3}),
        ("laptop-translator", "translate", {"interventions": [{"kind": "ablate", "part": "encoder.0"}]}),
        ("laptop-writer", "generate", {"seed": 3}),
        ("laptop-writer", "generate", {"beam": 2}),
    ],
)
def test_int8_is_a_preference(
    make_trained: MakeTrained, tmp_path: Path, family: str, task: Any, options: dict[str, Any]
) -> None:
    """Requests that CTranslate2 cannot serve, such as samples, use the original weights."""
    trained: Any = heedful.load(make_trained(family).save(tmp_path / "m"), device="cpu")
    engine = ContinuousEngine()
    engine.add_model("m", trained, int8=True)
    (result,) = engine.submit(EngineRequest("m", task, ["2 May 1980"], {"max_length": 9, **options})).result(60.0)
    call = trained.iter_translate if task == "translate" else trained.iter_generate
    (expected,) = call(["2 May 1980"], max_length=9, int8="beam" in options, **options)
    assert result.text == expected.text
    assert (result.backend == "ctranslate2") == ("beam" in options)
    engine.close()


def test_models_without_a_fast_decoder_are_served_in_batches(make_trained: MakeTrained, texts: list[str]) -> None:
    translator: Any = make_trained("laptop-translator", exclude_self=True)
    records: list[BatchRecord] = []
    engine = ContinuousEngine(observe=records.append)
    engine.add_model("m", translator)
    sampled = {"temperature": 1.0, "seed": 5}
    chosen = [(text, options) for text in texts[:12] for options in ({"beam": 1}, sampled)]
    tickets = [engine.submit(EngineRequest("m", "translate", [text], options)) for text, options in chosen]
    for ticket, (text, options) in zip(tickets, chosen, strict=True):
        assert_same(ticket.result(30.0)[0], next(translator.iter_translate([text], **options)))
    assert len(records) < len(chosen)
    engine.close()


def test_waiting_texts_are_split_evenly_between_the_workers(
    translator: TrainedModel, texts: list[str], tmp_path: Path
) -> None:
    records: list[BatchRecord] = []
    engine = ContinuousEngine(device="cpu", observe=records.append)
    try:
        engine.add_model("m", heedful.load(translator.save(tmp_path / "m"), device="cpu"))
        request = EngineRequest("m", "embed", [texts[0]] * 16)
        engine.submit(request).result(60.0)
        assert sum(record.texts for record in records) == 16
        assert len(records) == engine.batch_workers, records
    finally:
        engine.close()


def test_a_cancelled_request_leaves_the_queue(engine: ContinuousEngine, translator: TrainedModel) -> None:
    engine.add_model("m", translator)
    event = blocked(engine, "m")
    waiting = [engine.submit(EngineRequest("m", "call", call=lambda _: None)) for _ in range(500)]
    for ticket in waiting:
        ticket.cancel()
    with pytest.raises(RequestCancelledError):
        waiting[0].result()
    event.set()
    assert engine.submit(EngineRequest("m", "call", call=lambda _: 7)).result(10.0) == [7]
    assert engine.drain(10.0)
    assert engine.stats().queued == 0


def test_a_full_queue_refuses_requests_and_recovers(translator: TrainedModel) -> None:
    engine = ContinuousEngine(queue_limit=10)
    engine.add_model("m", translator)
    event = blocked(engine, "m")
    time.sleep(0.05)
    nothing = EngineRequest("m", "call", call=lambda _: None)
    for _ in range(10):
        engine.submit(nothing)
    with pytest.raises(QueueFullError):
        engine.submit(nothing)
    event.set()
    assert engine.drain(10.0)
    engine.close()


def test_a_failing_request_does_not_affect_others(engine: ContinuousEngine, translator: Any, texts: list[str]) -> None:
    encode = translator.tokenizer.encode

    def failing_encode(batch: list[str]) -> Any:
        if any("poison" in text for text in batch):
            raise RuntimeError("out of luck")
        return encode(batch)

    translator.tokenizers[0].encode = failing_encode
    try:
        engine.add_model("m", translator)
        tickets = [engine.submit(EngineRequest("m", "embed", [text])) for text in [*texts[:5], "poison", *texts[5:10]]]
        with pytest.raises(RuntimeError, match="out of luck"):
            tickets.pop(5).result(10.0)
        assert all(len(ticket.result(10.0)) == 1 for ticket in tickets)
    finally:
        del translator.tokenizers[0].encode


def test_a_request_past_its_deadline_is_cancelled(engine: ContinuousEngine, translator: TrainedModel) -> None:
    engine.add_model("m", translator)
    event = blocked(engine, "m")
    ran: list[int] = []
    late = engine.submit(EngineRequest("m", "call", call=lambda _: ran.append(1), deadline=time.monotonic() + 0.05))
    with pytest.raises(DeadlineExceededError):
        late.result()
    event.set()
    assert engine.drain(10.0)
    assert not ran


def test_a_client_with_many_requests_does_not_starve_another(
    engine: ContinuousEngine, translator: TrainedModel
) -> None:
    engine.add_model("m", translator)
    event, order = blocked(engine, "m"), list[str]()
    for client, count in (("greedy", 300), ("modest", 5)):
        for _ in range(count):
            engine.submit(EngineRequest("m", "call", call=lambda _, c=client: order.append(c), client=client))
    event.set()
    assert engine.drain(10.0)
    assert order.index("modest") < 4
    assert order[:12].count("modest") == 5


def test_closing_the_engine_ends_accepted_requests(engine: ContinuousEngine, translator: TrainedModel) -> None:
    engine.add_model("m", translator)
    tickets = [engine.submit(EngineRequest("m", "embed", ["2 May"])) for _ in range(20)]
    assert engine.drain(10.0)
    assert all(ticket.is_done and not ticket.failed for ticket in tickets)
    with pytest.raises(EngineClosedError):
        engine.submit(EngineRequest("m", "embed", ["2 May"]))


def test_invalid_requests_are_refused_at_once(engine: ContinuousEngine, translator: TrainedModel) -> None:
    engine.add_model("dates", translator)
    for request in (
        EngineRequest("date", "translate", ["x"]),
        EngineRequest("dates", "classify", ["x"]),
        EngineRequest("dates", "translate", ["x"], {"beam": 0}),
        EngineRequest("dates", "translate", [3]),
        EngineRequest("dates", "translate", ["x"], stream=True),
    ):
        with pytest.raises((UsageError, ValueError)):
            engine.submit(request)
    assert engine.stats().active == 0


def test_streamed_text_equals_generate(engine: ContinuousEngine, make_trained: MakeTrained) -> None:
    trained: Any = make_trained("laptop-writer")
    engine.add_model("m", trained)
    options = {"seed": 5, "max_length": 30}
    ticket = engine.submit(EngineRequest("m", "generate", ["1 May"], options, stream=True))
    assert "".join(ticket.pieces()) == next(trained.iter_generate(["1 May"], **options)).text


def test_results_streams_and_cancellation_work_in_an_event_loop(
    engine: ContinuousEngine, make_trained: MakeTrained
) -> None:
    trained: Any = make_trained("laptop-writer")
    engine.add_model("m", trained)

    async def use() -> None:
        options = {"seed": 5, "max_length": 30}
        (result,) = await engine.submit(EngineRequest("m", "generate", ["1 May"], options)).wait()
        ticket = engine.submit(EngineRequest("m", "generate", ["1 May"], options, stream=True))
        assert "".join([piece async for piece in ticket.stream()]) == result.text
        event = blocked(engine, "m")
        ticket = engine.submit(EngineRequest("m", "call", call=lambda _: None))
        task = asyncio.create_task(ticket.wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ticket.failed
        late = engine.submit(EngineRequest("m", "call", call=lambda _: None, deadline=time.monotonic() + 0.02))
        with pytest.raises(DeadlineExceededError):
            await late.wait()
        event.set()

    asyncio.run(use())


def test_an_engine_without_decoding_models_is_idle(engine: ContinuousEngine) -> None:
    assert engine.heartbeat() == 0.0
