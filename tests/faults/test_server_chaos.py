"""What happens around a server under load: killed processes, full disks, clocks that jump, models replaced and damaged.

Nothing wrong is ever answered: every text of every response is what one whole model answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import torch

import heedful
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig
from served import CLOSED, RunningServer, run_clients, start_server

WORDS = [
    "a",
    "small",
    "dog",
    "runs",
    "in",
    "the",
    "green",
    "park",
    "while",
    "two",
    "men",
    "ride",
    "bicycles",
    "and",
    "boys",
    "play",
]
CLIENTS = 16


@pytest.fixture(scope="module")
def texts() -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=chance.randint(2, 9))) for _ in range(40)]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small random translators of different answers."""
    folders = [tmp_path_factory.mktemp("versions") / "m" for _ in "12"]
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 3, TokenizerConfig(kind="words", vocabulary=60))
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        model = heedful.build("laptop-translator", vocabulary=len(tokenizer), width=16, heads=2, layers=1).eval()
        wrap_model(model, (tokenizer,)).save(folder)
    return folders


class CheckedLoad:
    """Clients that ask for two texts at a time, and a count of what they were answered."""

    def __init__(self, texts: list[str], versions: list[Path]) -> None:
        self.pairs = [texts[index : index + 2] for index in range(0, len(texts), 2)]
        models = [heedful.Translator.load(folder, device="cpu") for folder in versions]
        self.expected = [[model.translate(pair, max_length=12) for pair in self.pairs] for model in models]
        assert self.expected[0] != self.expected[1]
        self.statuses: Counter[int] = Counter()
        self.served: Counter[int] = Counter()
        self.wrong: list[Any] = []
        self._over = False

    def _answered(self, index: int, status: int, content: bytes) -> None:
        self.statuses[status] += 1
        if status == 200:
            answer = [each["text"] for each in json.loads(content)["results"]]
            matching = [number for number, expected in enumerate(self.expected) if answer == expected[index]]
            self.wrong += [] if matching else [answer]
            self.served.update(matching if len(matching) == 1 else ())

    def during(self, server: RunningServer, events: Callable[[], object]) -> None:
        """Ask while the events happen."""
        bodies = [json.dumps({"text": pair, "max_length": 12}).encode() for pair in self.pairs]
        self._over = False
        asking = run_clients(server, "/api/v1/translate", bodies, CLIENTS, lambda: self._over, self._answered)
        thread = Thread(target=asyncio.run, args=(asking,))
        thread.start()
        try:
            events()
        finally:
            self._over = True
            thread.join(60)
        assert not self.wrong

    def report(self, what: str) -> None:
        print(f"{what}: {dict(self.statuses)} answers by version {dict(self.served)}")


@pytest.fixture
def load(texts: list[str], versions: list[Path]) -> CheckedLoad:
    return CheckedLoad(texts, versions)


def replace_and_damage(folder: Path, versions: list[Path], rounds: int) -> None:
    """Replace a model by the other one; damage it, cut it short, empty it, remove it, put it back."""

    def damaged(content: bytes) -> bytes:
        return content[:-1000] + b"\x3f" * 1000

    def half(content: bytes) -> bytes:
        return content[: len(content) // 2]

    weights, chance = folder / "model.safetensors", random.Random(0)
    for round_ in range(rounds):
        heedful.load(versions[round_ % 2], device="cpu").save(folder)
        time.sleep(2.5)
        for _ in range(2):
            harm: Any = chance.choice([damaged, half, lambda _: b"", None])
            if harm is None:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            elif weights.exists():
                with weights.open("r+b") as stream:  # in place, as a failing disk or an interrupted copy
                    content = harm(stream.read())
                    stream.seek(0)
                    stream.write(content)
                    stream.truncate()
            time.sleep(chance.uniform(0.3, 2.2))


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_model_replaced_and_damaged_under_load_never_answers_wrongly(
    fork_server: Any, tmp_path: Path, versions: list[Path], load: CheckedLoad, rounds: int
) -> None:
    """Every response is that of one whole version, and none is lost."""
    shutil.copytree(versions[1], tmp_path / "m")
    process, server = start_server(fork_server, tmp_path, "m", "--log-file", "log")
    load.during(server, lambda: replace_and_damage(tmp_path / "m", versions, rounds))
    load.report("replaced and damaged")
    assert {*load.statuses} == {200}
    assert {*load.served} == {0, 1}
    assert "the model loaded before is still served" in process.output()
    assert "Traceback" not in process.output()
    process.send(signal.SIGTERM)
    assert process.wait().code == 0


def test_a_link_to_another_version_is_followed_under_load(
    fork_server: Any, tmp_path: Path, versions: list[Path], load: CheckedLoad
) -> None:
    (tmp_path / "current").symlink_to(versions[0])
    process, server = start_server(fork_server, tmp_path, "current", "--log-file", "log")

    def switch() -> None:
        (tmp_path / "next").symlink_to(versions[1])
        (tmp_path / "next").replace(tmp_path / "current")
        process.wait_for_output("current: loaded again", 20)
        time.sleep(0.5)

    load.during(server, switch)
    assert {*load.statuses} == {200}
    assert {*load.served} == {0, 1}
    process.send(signal.SIGTERM)
    assert process.wait().code == 0


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_server_answers_nothing_wrong_and_starts_again_on_its_port(
    fork_server: Any, tmp_path: Path, versions: list[Path], load: CheckedLoad, kills: int
) -> None:
    """kill -9 under load: clients see a closed connection, never half an answer; nothing is left to clean up."""
    shutil.copytree(versions[0], tmp_path / "m")
    process, server = start_server(fork_server, tmp_path, "m", "--log-file", "log")

    def kill() -> None:
        nonlocal process
        for _ in range(kills):
            time.sleep(0.5)
            process.send(signal.SIGKILL)
            assert process.wait().code == -signal.SIGKILL
            process, _ = start_server(fork_server, tmp_path, "m", "--log-file", "log", port=server.address[1])
        time.sleep(0.5)

    load.during(server, kill)
    load.report(f"killed {kills} times")
    assert {*load.statuses} == {200, CLOSED}
    process.send(signal.SIGTERM)
    assert process.wait().code == 0


def test_a_disk_that_is_full_costs_log_lines_and_nothing_else(
    fork_server: Any, tmp_path: Path, versions: list[Path], load: CheckedLoad
) -> None:
    """Also in the middle of a line; when there is room again, the log goes on with a line of its own."""
    shutil.copytree(versions[0], tmp_path / "m")
    process, server = start_server(fork_server, tmp_path, "m", "--log-file", "log")
    log = tmp_path / "log"

    def fill() -> None:
        time.sleep(0.5)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 500, resource.RLIM_INFINITY))
        time.sleep(1.0)
        assert "heedful_lost_log_lines_total 0.0" not in server.get("/metrics").text
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        time.sleep(0.5)

    load.during(server, fill)
    assert {*load.statuses} == {200}
    process.send(signal.SIGTERM)
    assert process.wait().code == 0
    lines, broken = log.read_text().splitlines(), []
    for line in lines:
        try:
            assert json.loads(line)["status"] == 200
        except json.JSONDecodeError:
            broken.append(line)
    assert len(lines) > 100
    assert len(broken) <= 1
    lost = load.statuses.total() + 1 - (len(lines) - len(broken))
    assert 0 < lost < load.statuses.total()


def clock_library() -> Path | None:
    """libfaketime, which shifts the clock of one process."""
    names = [os.environ.get("LIBFAKETIME", ""), *map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))]
    return next((Path(name) for name in names if name and Path(name).exists()), None)


@pytest.mark.slow
@pytest.mark.skipif(clock_library() is None, reason="libfaketime is not installed (or named by LIBFAKETIME)")
def test_a_clock_that_jumps_changes_no_answer_and_no_deadline(
    tmp_path: Path, versions: list[Path], load: CheckedLoad
) -> None:
    """Years ahead and back, under load, while a model is replaced."""
    shutil.copytree(versions[0], tmp_path / "m")
    shift = tmp_path / "shift"
    shift.write_text("+0")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(clock_library()),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "heedful", "serve", "m", "--port", "0", "--log-file", "log"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next(line.split()[1] for line in lines if line.startswith("address"))
            server = RunningServer(address)

            def jump() -> None:
                for shifted in ("+10y", "-10y", "+1h", "-1d", "+0"):
                    shift.write_text(shifted)
                    time.sleep(3.0)
                    date = httpx.get(address + "/health", trust_env=False).headers["date"]
                    assert (str(time.gmtime().tm_year) in date) == (not shifted.endswith("y")), date
                heedful.load(versions[1], device="cpu").save(tmp_path / "m")
                end = time.monotonic() + 20
                while not load.served[1]:
                    assert time.monotonic() < end
                    time.sleep(0.1)

            load.during(server, jump)
            load.report("clock jumps")
            assert {*load.statuses} == {200}
            text = server.get("/metrics").text
            assert all(float(line.split()[-1]) >= 0 for line in text.splitlines() if not line.startswith("#"))
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_a_client_that_reads_no_event_of_its_stream_holds_nothing_up(
    fork_server: Any, tmp_path: Path, versions: list[Path], load: CheckedLoad
) -> None:
    """Streams that are not read are not kept in memory without end, and others are answered meanwhile."""
    shutil.copytree(versions[0], tmp_path / "m")
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 3, TokenizerConfig(kind="words", vocabulary=60))
    model = heedful.build("laptop-writer", vocabulary=len(tokenizer), width=16, heads=2, layers=1).eval()
    wrap_model(model, (tokenizer,)).save(tmp_path / "w")
    process, server = start_server(fork_server, tmp_path, "m", "w", "--max-tokens", "100000", "--log-file", "log")
    body = {"model": "w", "prompt": "a dog", "stream": True, "max_length": 100_000, "min_length": 100_000}
    content = json.dumps(body).encode()
    head = b"POST /api/v1/generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with closing(socket.socket()) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(server.address)
        silent.sendall(head + b"content-length: %d\r\n\r\n" % len(content) + content)
        load.during(server, lambda: time.sleep(2.0))
    assert {*load.statuses} == {200}
    process.wait_until(lambda: "heedful_active_texts 0.0" in server.get("/metrics").text, 20)
    process.send(signal.SIGTERM)
    assert process.wait().code == 0
