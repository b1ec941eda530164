"""What every test starts from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

import shapechecks

# Before heedful: under the import hook Python looks for everything compiled in a place of the hook's own, and would
# compile anew what it does not find there, half of torch among it. Training needs torch's compiler in any case.
shapechecks.install()

# Tests run side by side, and matrices this small are multiplied sooner than a second thread wakes up.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def corpora() -> Path:
    """The folder of real corpora; tests that need one say so by asking for this."""
    folder = os.environ.get("HEEDFUL_DATA")
    if not folder:
        pytest.skip("HEEDFUL_DATA is not set: no corpora here")
    return Path(folder)


# Real processes

NURSERY = Path(__file__).with_name("nursery.py")


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it had said."""

    code: int
    said: str


@dataclass(frozen=True)
class Running:
    pid: int
    log: Path
    home: Nursery

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def until(self, words: str, seconds: float = 60) -> None:
        """Wait until it has said this."""
        self.until_true(lambda: words in self.said(), seconds)

    def until_true(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.said()
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def press(self, number: signal.Signals) -> None:
        """Send it to every process of the run, as a terminal does."""
        os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """It is not gone before somebody has waited for it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def wait(self) -> Done:
        return Done(self.home.ask(wait=self.pid)["code"], self.said())


class Nursery:
    """Where processes are born: see nursery.py."""

    def __init__(self, cache: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEEDFUL_CACHE": str(cache)}
        self.process = subprocess.Popen(
            [sys.executable, str(NURSERY)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()
        self.born = 0

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def start(
        self,
        *arguments: str | Path,
        folder: Path,
        kill_at: int = 0,
        limits: dict[str, int] | None = None,
        before: str = "",
        log: Path | None = None,
        output: Path | None = None,
    ) -> Running:
        """The command with these arguments in this folder; `before` is run in the process first.

        What it says goes into a log, standard output into a file of its own if asked.
        """
        self.born += 1
        log = log or folder / f"said-{self.born}.log"
        words = [str(argument) for argument in arguments]
        asked = {"folder": str(folder), "log": str(log), "kill_at": kill_at, "limits": limits or {}, "before": before}
        asked["output"] = str(output or log)
        return Running(self.ask(arguments=words, **asked)["pid"], log, self)

    def run(self, *arguments: str | Path, folder: Path, **harm: Any) -> Done:
        return self.start(*arguments, folder=folder, **harm).wait()

    def run_script(self, code: str, *arguments: str | Path, folder: Path, **more: Any) -> Done:
        """Some Python in the command's place: quick to start, and without the test suite's shape checks."""
        named = [str(argument) for argument in arguments]
        instead = f"import sys\nsys.argv[1:] = {named!r}\n{code}\nraise SystemExit"
        return self.run(folder=folder, before=instead, **more)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    home = Nursery(tmp_path_factory.mktemp("cache"))
    yield home
    assert home.process.stdin is not None
    home.process.stdin.close()
    home.process.wait(timeout=30)
    assert home.process.stdout is not None
    home.process.stdout.close()
