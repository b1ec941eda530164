"""Under load: answers equal the library's, refusals are as designed, memory stays flat, no slot is lost."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from served import RunningServer, resident_bytes, run_clients, running, start_server

CLIENTS = 24
WORDS = ["a", "small", "dog", "runs", "two", "men", "ride", "blue", "boy", "park"]


def random_requests(models: dict[str, Any], sources: list[str], count: int) -> list[tuple[str, dict[str, Any], Any]]:
    """Requests of all tasks with what the library answers to each: greedy, beam, sampled, with interventions."""
    chance, made = random.Random(0), []
    for _ in range(count):
        text, words = chance.choice(sources), " ".join(chance.choices(WORDS, k=chance.randint(2, 9)))
        search = chance.choice([{"beam": 1}, {"beam": 4}, {"beam": 2, "n_best": 2}, {"temperature": 0.7, "seed": 3}])
        sample = {"temperature": chance.choice([0.0, 0.9]), "seed": chance.randrange(5), "max_length": 15}
        change = chance.choice([{}, {}, {"interventions": [{"kind": "scale", "part": "encoder.0", "factor": 0.5}]}])
        made.append(
            chance.choice([
                ("translate", {"text": text, "model": "dates", "max_length": 10, **search, **change}),
                ("translate", {"text": text, "model": "dates", "max_length": 12, **search}),
                ("generate", {"prompt": text[:6], "model": "writer", **sample}),
                ("classify", {"text": words, "model": "classify"}),
                ("fill", {"text": f"{words} [MASK]", "model": "fill"}),
                ("answer", {"question": "who runs", "passage": words, "model": "answer"}),
                ("embed", {"text": text, "model": "dates"}),
            ])
        )  # fmt: skip
    return [(task, body, library_answer(models[body["model"]], task, body)) for task, body in made]


def library_answer(model: Any, task: str, body: dict[str, Any]) -> Any:
    """What a user of the library gets."""
    options = {name: value for name, value in body.items() if name not in ("text", "prompt", "model")}
    if "interventions" in options:
        from heedful.interventions.kinds import interventions_from_json

        options["interventions"] = interventions_from_json(json.dumps(options["interventions"]))
    match task:
        case "translate":
            return next(model.iter_translate([body["text"]], **options)).text
        case "generate":
            return next(model.iter_generate([body["prompt"]], **options)).text
        case "classify" | "fill":
            return getattr(model, task)(body["text"]).to_json()
        case "answer":
            return model.answer(body["question"], body["passage"]).to_json()
    return model.embed(body["text"]).tolist()


async def ask_all(server: RunningServer, requests: list[tuple[str, dict[str, Any], Any]]) -> list[Any]:
    """Send all requests, from many clients at once."""
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=120, trust_env=False) as client:

        async def ask(task: str, body: dict[str, Any]) -> Any:
            answer = await client.post(f"/api/v1/{task}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["results"][0]

        return await asyncio.gather(*(ask(task, body) for task, body, _ in requests))


def check_answers(server: RunningServer, sources: list[str], count: int) -> None:
    requests = random_requests(server.models, sources, count)
    for (task, body, expected), result in zip(requests, asyncio.run(ask_all(server, requests)), strict=True):
        if task in ("translate", "generate"):
            assert result["text"] == expected, body
        elif task == "embed":
            assert result["vector"] == pytest.approx(expected, abs=1e-5)
        elif task == "classify":
            assert result["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        elif task == "answer":
            assert [result[key] for key in ("answer", "start")] == [expected[key] for key in ("answer", "start")]
        else:
            assert result["filled"] == expected["filled"]


def test_answers_equal_the_librarys_whatever_else_is_served(server: RunningServer, sources: list[str]) -> None:
    check_answers(server, sources, 100)


@pytest.mark.slow
def test_a_thousand_answers_equal_the_librarys(server: RunningServer, sources: list[str]) -> None:
    check_answers(server, sources, 1_000)


@pytest.mark.parametrize(
    ("clients", "seconds"), [(200, 3.0), pytest.param(2_000, 120.0, marks=pytest.mark.slow)], ids=["quick", "full"]
)
def test_a_crowd_is_answered_or_refused_as_designed(
    fork_server: Any, tmp_path: Path, models: dict[str, Any], sources: list[str], clients: int, seconds: float
) -> None:
    """Far more clients than the queue holds: 200, 429 or 503; memory stays flat, and the next client is answered."""
    models["dates"].save(tmp_path / "dates")
    options = ("--queue", str(clients // 8), "--deadline", "20", "--log-file", "log")
    process, server = start_server(fork_server, tmp_path, "dates", *options)
    bodies = [json.dumps({"text": text, "max_length": 20}).encode() for text in sources]
    statuses: Counter[int] = Counter()
    memory: list[int] = []
    end = time.monotonic() + seconds

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(resident_bytes(process.pid))
            await asyncio.sleep(seconds / 120)

    def answered(_: int, status: int, __: bytes) -> None:
        statuses[status] += 1

    async def crowd() -> None:
        asking = asyncio.create_task(run_clients(server, "/api/v1/translate", bodies, clients, lambda: False, answered))
        await watch()
        asking.cancel()  # all connections close, with what is in flight
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0)  # the connections are closed

    asyncio.run(crowd())
    start = time.monotonic()
    assert server.post("/api/v1/translate", {"text": sources[0]}).status_code == 200
    recovery = time.monotonic() - start
    warm = sorted(memory[len(memory) // 4 :])
    median = statistics.median(warm)
    print(
        f"{clients} clients, {seconds:g} s: {dict(statuses)}; memory {median / 2**20:.0f} MiB, "
        f"{warm[0] / median - 1:+.1%} to {warm[-1] / median - 1:+.1%}; recovery {recovery:.2f} s"
    )
    assert {200, 429} <= {*statuses} <= {200, 429, 503}
    assert statuses[200] > 20 * seconds
    assert recovery < 1.0
    assert 0.95 * median < warm[0] <= warm[-1] < 1.05 * median
    process.send(signal.SIGTERM)
    assert process.wait().code == 0


async def cancel_streams(server: RunningServer, count: int) -> None:
    """Open streams and close each before it ends."""
    host, port = server.address
    body = json.dumps({"prompt": "May 1980", "stream": True, "max_length": 1000, "min_length": 1000}).encode()
    head = f"POST /api/v1/generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"

    async def open_and_close(gate: asyncio.Semaphore) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
            await reader.read(random.choice([1, 200, 600]))
            writer.close()

    gate = asyncio.Semaphore(32)
    await asyncio.gather(*(open_and_close(gate) for _ in range(count)))


def check_cancelled_streams(models: dict[str, Any], count: int) -> None:
    with running({"writer": models["writer"]}) as server:
        assert server.app is not None
        engine, start = server.app.state.serving.engine, time.monotonic()
        asyncio.run(cancel_streams(server, count))
        print(f"{count} streams cancelled in {time.monotonic() - start:.0f} s")
        end = time.monotonic() + 20
        while engine.stats().active or engine.stats().queued:
            assert time.monotonic() < end, engine.stats()
            time.sleep(0.02)
        answer = server.post("/api/v1/generate", {"prompt": ["May"] * 64, "max_length": 5})
        assert answer.status_code == 200


def test_a_cancelled_stream_loses_no_slot(models: dict[str, Any]) -> None:
    check_cancelled_streams(models, 100)


@pytest.mark.slow
def test_ten_thousand_cancelled_streams_lose_no_slot(models: dict[str, Any]) -> None:
    check_cancelled_streams(models, 10_000)
