"""Serving speed: `heedful serve` beside servers of one's own, and beside heedful's own offline throughput, in one run.

    python benchmarks/serving.py MODEL_FOLDER --texts FILE --name multi30k --beam 4 --clients 1,16,64
    python benchmarks/serving.py base --texts FILE --beam 1        random weights, shaped as Transformer-base
    python benchmarks/serving.py … --long 0.1                      one text in ten has 100 words and more
    python benchmarks/serving.py gpt2-small --texts FILE --peers transformers   continuations of 32 tokens

Clients ask one sentence at a time, each as soon as it has its answer (closed loop, loopback, connections kept). Every
contender is a server of its own; while one is measured the others are stopped, and they take turns (A B C, B C A, …),
so that a busy machine disturbs all alike. A measurement counts the answers of `--seconds`, but at least one for each
client, after as many for warming up. Ratios are heedful's / theirs, round by round (median and quartiles).

  heedful       heedful serve
  offline       one call of `translate` with many of the same texts: heedful's own throughput
  library       the latency of `translate` with one text, for comparison with one client
  ctranslate2   FastAPI around CTranslate2, two workers, micro-batches of 32 or 5 ms
  litserve      LitServe (pip install litserve) around Hugging Face's `generate`, batches of 32 or 5 ms
  huggingface   FastAPI around Hugging Face's `generate`
  transformers  for language models: `transformers serve --continuous-batching` with the exported model
                (pip install accelerate)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from layers import machine
from serving_models import SHAPES, make_model
from training import take_turns

HERE = Path(__file__).parent
PEERS = ("ctranslate2", "litserve", "huggingface")
LONG_WORDS = 100
CONTINUATION_TOKENS = 32
START_SECONDS = 300.0


class Server:
    """A contender's server process, stopped while others are measured."""

    def __init__(
        self, name: str, command: list[str], port: int, path: str, body: dict[str, Any], field: str = "text"
    ) -> None:
        self.name, self.port, self.path, self.body, self.field = name, port, path, body, field
        quiet = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                asyncio.run(ask(self, ["A man is here."], count=1))
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.5)
        raise SystemExit(f"{self.name} did not start")

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


async def ask(server: Server, texts: list[str], *, count: int, seed: int = 0) -> list[tuple[str, float]]:
    """Ask `count` times over one connection; each text with the seconds to its answer."""
    rng, reader, writer = random.Random(seed), *await asyncio.open_connection("127.0.0.1", server.port)
    answers = []
    try:
        for _ in range(count):
            text = rng.choice(texts)
            start = time.perf_counter()
            await request(server, text, reader, writer)
            answers.append((text, time.perf_counter() - start))
    finally:
        writer.close()
    return answers


async def request(server: Server, text: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({**server.body, server.field: text}).encode()
    head = f"POST {server.path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    if not answer.startswith("HTTP/1.1 200"):
        raise OSError(answer.splitlines()[0])
    length = next(line for line in answer.lower().splitlines() if line.startswith("content-length:"))
    await reader.readexactly(int(length.split(":")[1]))


async def closed_loop(server: Server, texts: list[str], clients: int, seconds: float, seed: int) -> dict[str, Any]:
    """Answers a second and latencies of so many clients."""
    answers: list[tuple[str, float]] = []

    async def client(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            while True:
                text = rng.choice(texts)
                start = time.perf_counter()
                await request(server, text, reader, writer)
                answers.append((text, time.perf_counter() - start))
        finally:
            writer.close()

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]

    async def answered(number: int) -> None:
        while len(answers) < number and not any(task.done() for task in tasks):
            await asyncio.sleep(0.005)

    await answered(clients)
    answers.clear()
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    await answered(clients)
    elapsed, counted = time.perf_counter() - start, list(answers)
    failed = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise SystemExit(f"{server.name}: {failed[0].exception()!r}")
    short = [latency for text, latency in counted if len(text.split()) < LONG_WORDS]
    return {"speed": len(counted) / elapsed, "answers": len(counted), **percentiles(short)}


def percentiles(latencies: list[float]) -> dict[str, float]:
    """Latencies in milliseconds."""
    ordered = sorted(latencies)
    return {f"p{share}": 1e3 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 99)}


def library(pipe: Any, folder: str, beam: int, int8: bool, device: str) -> None:
    """heedful without a server, in a process of its own: many texts in one call, or each in a call."""
    import heedful

    trained: Any = heedful.load(folder, device=device)
    while work := pipe.recv():
        texts, together = work
        latencies, begin = [], time.perf_counter()
        for batch in [texts] if together else [[text] for text in texts]:
            start = time.perf_counter()
            if hasattr(trained, "translate"):
                trained.translate(batch, beam=beam, int8=int8)
            else:
                trained.generate(batch, temperature=0, max_length=CONTINUATION_TOKENS, int8=int8)
            latencies.append(time.perf_counter() - start)
        pipe.send({"speed": len(texts) / (time.perf_counter() - begin), **percentiles(latencies)})


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def start_servers(folder: Path, options: argparse.Namespace) -> dict[str, Server]:
    """All servers, each on a port of its own; they answer before the first measurement."""
    port, servers = free_port(), {}
    command = [sys.executable, "-m", "heedful", "serve", str(folder), "--port", str(port), "--device", options.device]
    command += ["--int8"] if options.int8 else []
    if is_translator(folder):
        body = {"model": folder.name, "beam": options.beam, "word_probabilities": False}
        servers["heedful"] = Server("heedful", command, port, "/api/v1/translate", body)
    else:
        completion = {"max_tokens": CONTINUATION_TOKENS, "temperature": 0}
        body = {"model": folder.name, **completion}
        servers["heedful"] = Server("heedful", command, port, "/v1/completions", body, "prompt")
    for peer in options.peers:
        port = free_port()
        if peer == "transformers":
            exported = folder.with_name(f"{folder.name}-huggingface")
            if not exported.exists():
                subprocess.run(
                    [sys.executable, "-m", "heedful", "export", str(folder), str(exported), "--to", "huggingface"],
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            command = [str(Path(sys.executable).with_name("transformers")), "serve", "--continuous-batching"]
            command += ["--cb-num-blocks", "512", "--cb-max-batch-tokens", "1024"]  # else most of the memory
            command += ["--device", options.device, "--host", "127.0.0.1", "--port", str(port), str(exported)]
            body = {"model": str(exported), **completion}
            servers[peer] = Server(peer, command, port, "/v1/completions", body, "prompt")
            continue
        command = [sys.executable, str(HERE / "serving_peers.py"), peer, str(folder), str(port), str(options.beam)]
        command += [options.device, *(["int8"] if options.int8 else [])]
        servers[peer] = Server(peer, command, port, "/translate", {})
    try:
        for server in servers.values():
            server.wait()
            server.signal(signal.SIGSTOP)
    except BaseException:
        stop_servers(servers)
        raise
    return servers


def is_translator(folder: Path) -> bool:
    return "encoder_decoder" in json.loads((folder / "config.json").read_text(encoding="utf-8"))["family"]


def stop_servers(servers: dict[str, Server]) -> None:
    for server in servers.values():
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)


def read_texts(options: argparse.Namespace) -> list[str]:
    """The sentences asked for; with `--long`, some are many sentences in one line of 100 words and more."""
    texts = [line.strip() for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    number = round(options.long * len(texts) / max(1e-9, 1 - options.long))
    rng, long = random.Random(0), []
    for _ in range(number):
        words: list[str] = []
        while len(words) < LONG_WORDS:
            words += [*rng.choice(texts).rstrip(".").split(), "and"]
        long.append(" ".join(words[:-1]) + ".")
    return texts + long


def measure(options: argparse.Namespace, folder: Path, texts: list[str]) -> list[dict[str, Any]]:
    servers = start_servers(folder, options)
    pipe, end = multiprocessing.get_context("spawn").Pipe()
    offline = multiprocessing.get_context("spawn").Process(
        target=library, args=(end, str(folder), options.beam, options.int8, options.device), daemon=True
    )
    offline.start()
    rng, rows = random.Random(1), []

    def once(name: str, number: int) -> dict[str, Any]:
        if name in ("offline", "library"):
            count = options.offline if name == "offline" else 20
            pipe.send((rng.choices(texts, k=count), name == "offline"))
            result: dict[str, Any] = pipe.recv()
            return result
        servers[name].signal(signal.SIGCONT)
        try:
            return asyncio.run(closed_loop(servers[name], texts, clients, options.seconds, number))
        finally:
            servers[name].signal(signal.SIGSTOP)

    try:
        once("offline", 0)
        for clients in options.clients:
            slow = {"huggingface"} if clients > 16 else set()
            field = ["heedful", "library" if clients == 1 else "offline", *(set(options.peers) - slow)]
            results = take_turns(field, options.rounds, once)
            rows.append(summary(clients, results))
            print(json.dumps(rows[-1]), flush=True)
    finally:
        pipe.send(None)
        stop_servers(servers)
    return rows


def summary(clients: int, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, and heedful's ratio to each contender round by round."""
    contenders = {}
    for name, rounds in results.items():
        one: dict[str, Any] = {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]}
        for key in ("speed", "p50", "p99"):
            ratios = [ours[key] / theirs[key] for ours, theirs in zip(results["heedful"], rounds, strict=True)]
            one[f"heedful_{key}_ratio"] = round(statistics.median(ratios), 3)
            one[f"heedful_{key}_ratios"] = [round(ratio, 3) for ratio in ratios]
        contenders[name] = one
    return {"clients": clients, "contenders": contenders}


def versions() -> dict[str, str]:
    known = {}
    for package in ("heedful", "torch", "ctranslate2", "transformers", "litserve", "fastapi", "uvicorn"):
        with suppress(PackageNotFoundError):
            known[package] = version(package)
    return known


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"a model folder, or {', '.join(SHAPES)}: random weights of that shape")
    parser.add_argument("--texts", type=Path, required=True, help="sentences to translate, one a line")
    parser.add_argument("--name", help="what to call the model in the results")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clients", type=lambda text: [int(each) for each in text.split(",")], default=[1, 16, 64])
    parser.add_argument("--peers", type=lambda text: [each for each in text.split(",") if each], default=list(PEERS))
    parser.add_argument("--long", type=float, default=0.0, help="share of texts of 100 words and more")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--offline", type=int, default=256, help="texts of an offline call")
    parser.add_argument("--output", type=Path, help="default: results/serving-DEVICE.json")
    options = parser.parse_args()
    options.output = options.output or HERE / "results" / f"serving-{options.device}.json"
    return options


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    texts = read_texts(options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.model)
        if options.model in SHAPES:
            folder = Path(temporary) / options.model
            make_model(options.model, texts, folder)
        rows = measure(options, folder, texts)
    run = {
        "name": options.name or folder.name,
        "command": " ".join(["python", "benchmarks/serving.py", *map(short, sys.argv[1:])]),
        "beam": options.beam,
        "int8": options.int8,
        "long": options.long,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "load_average": os.getloadavg(),
        "machine": machine(options.device),
        "versions": versions(),
        "cells": rows,
    }
    known = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else []
    key = ("name", "beam", "int8", "long")
    known = [each for each in known if any(each[name] != run[name] for name in key)]
    options.output.write_text(json.dumps([*known, run], indent=2) + "\n", encoding="utf-8")


def short(argument: str) -> str:
    """An argument without the folders before a path."""
    return Path(argument).name if "/" in argument else argument


if __name__ == "__main__":
    main()
