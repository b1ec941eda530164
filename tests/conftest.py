"""Fixtures of every test: shape checks, a fixed seed, corpora, and real child processes."""

from __future__ import annotations

import gc
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

# Without a GPU, Triton kernels run in Triton's interpreter. It is chosen when triton is imported, which torch._dynamo
# may do. Only the kernels' own tests call them on CPU tensors: kernels.dispatch never does.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Where a test names no device it compares with values on the CPU. Tests of CUDA name it.
os.environ["HEEDFUL_DEVICE"] = "cpu"

import torch._dynamo

import shapechecks

# torch._dynamo is imported above, before heedful: the import hook keeps a bytecode cache of its own, and half of torch
# would be compiled again under it.
shapechecks.install()

# Tests run in parallel, and matrices this small are multiplied sooner than a second thread wakes up.
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Exempt all that is imported by now from garbage collection, which would take half a second each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` are for GPUs only."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Encoded text and converted models are written to a cache of the tests, never to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def corpora() -> Path:
    """The folder of real corpora; skips the test where there is none."""
    folder = os.environ.get("HEEDFUL_DATA")
    if not folder:
        pytest.skip("HEEDFUL_DATA is not set: no corpora")
    return Path(folder)


@pytest.fixture(scope="session")
def quiet_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Silence progress bars and warnings of transformers, and keep its copies of modeling files to this test run."""
    from transformers import dynamic_module_utils, logging

    dynamic_module_utils.HF_MODULES_CACHE = str(tmp_path_factory.mktemp("modules"))
    logging.set_verbosity_error()
    logging.disable_progress_bar()


FORK_SERVER = Path(__file__).with_name("fork_server.py")


@dataclass(frozen=True)
class FinishedProcess:
    """Exit code and output of a process that has ended."""

    code: int
    output: str


@dataclass(frozen=True)
class RunningProcess:
    """A process forked by the fork server, and its log."""

    pid: int
    log: Path
    server: ForkServer

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for_output(self, text: str, seconds: float = 60) -> None:
        """Wait until the log contains this text."""
        self.wait_until(lambda: text in self.output(), seconds)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.output()
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Send the signal to the whole process group, as a terminal does."""
        os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Whether the process has exited; it stays a zombie until `wait`."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def wait(self) -> FinishedProcess:
        return FinishedProcess(self.server.request(wait=self.pid)["code"], self.output())


class ForkServer:
    """Client of fork_server.py, which starts commands in child processes quickly."""

    def __init__(self, cache: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEEDFUL_CACHE": str(cache)}
        environment.pop("TRITON_INTERPRET", None)
        self.process = subprocess.Popen(
            [sys.executable, str(FORK_SERVER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.response()
        self.started = 0

    def response(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def request(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.response()

    def start(
        self,
        *arguments: str | Path,
        folder: Path,
        kill_at: int = 0,
        limits: dict[str, int] | None = None,
        before: str = "",
        log: Path | None = None,
        output: Path | None = None,
    ) -> RunningProcess:
        """Start `heedful ARGUMENTS` in this folder; `before` is Python code executed in the child first.

        Standard error and output go to the log, or standard output to a file of its own (`output`).
        """
        self.started += 1
        log = log or folder / f"process-{self.started}.log"
        response = self.request(
            arguments=[str(argument) for argument in arguments],
            folder=str(folder),
            log=str(log),
            output=str(output or log),
            kill_at=kill_at,
            limits=limits or {},
            before=before,
        )
        return RunningProcess(response["pid"], log, self)

    def run(self, *arguments: str | Path, folder: Path, **options: Any) -> FinishedProcess:
        return self.start(*arguments, folder=folder, **options).wait()

    def run_script(self, code: str, *arguments: str | Path, folder: Path, **options: Any) -> FinishedProcess:
        """Run a Python script instead of the command: quick to start, and without the test suite's shape checks."""
        argv = [str(argument) for argument in arguments]
        script = f"import sys\nsys.argv[1:] = {argv!r}\n{code}\nraise SystemExit"
        return self.run(folder=folder, before=script, **options)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = ForkServer(tmp_path_factory.mktemp("cache"))
    yield server
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(timeout=30)
    assert server.process.stdout is not None
    server.process.stdout.close()
