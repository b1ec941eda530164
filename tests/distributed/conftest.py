"""Fixtures that start several ranks."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from heedful.data.dates_corpus import write_dates

SCENARIOS = Path(__file__).with_name("scenarios.py")


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without a rank of its own."""
    prefixes = ("SLURM_", "TORCHELASTIC", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    return {**clean, "OMP_NUM_THREADS": "1", **more}


def start_interpreter(*command: str | Path, folder: Path, **more: str) -> subprocess.Popen[str]:
    """Start a new Python interpreter."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment(**more),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Ranks:
    """Starts one process per rank, with the environment that SLURM sets."""

    def __init__(self, fork_server: Any, logs: Path) -> None:
        self.fork_server, self.logs = fork_server, logs

    def start(self, size: int, *arguments: str | Path, folder: Path, before: str = "", **more: str) -> list[Any]:
        common = {"SLURM_NTASKS": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), **more}
        return [
            self.fork_server.start(
                *arguments,
                folder=folder,
                log=self.logs / f"{self.fork_server.started}.log",
                before=f"import os\nos.environ.update({common | rank!r})\n{before}",
            )
            for rank in ({"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)} for number in range(size))
        ]

    def finish(self, processes: list[Any], seconds: float = 300) -> list[tuple[int, str]]:
        """Exit code and output of each process."""
        for process in processes:
            process.wait_until(process.has_ended, seconds)
        return [(done.code, done.output) for done in (process.wait() for process in processes)]


@pytest.fixture(scope="session")
def interpreter() -> Any:
    return start_interpreter


@pytest.fixture(scope="session")
def ranks(fork_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(fork_server, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def scenarios() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scenarios", SCENARIOS)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["scenarios"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def two_ranks(scenarios: Any, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all scenarios run by two ranks, which are started once."""
    folder = tmp_path_factory.mktemp("scenarios")
    _run(ranks, 2, folder, [*scenarios.SCENARIOS, "disk full on rank 1", "no full tensors"])
    return folder


@pytest.fixture(scope="session")
def three_ranks(scenarios: Any, ranks: Ranks, two_ranks: Path) -> Path:
    """The scenarios that resume others, and that with fewer rows than ranks, run by three ranks."""
    names = [name for name, scenario in scenarios.SCENARIOS.items() if scenario.resume or "fewer" in name]
    _run(ranks, 3, two_ranks, names)
    return two_ranks / "3"


def _run(ranks: Ranks, size: int, folder: Path, names: list[str]) -> None:
    script = f"""
import runpy, sys
sys.path.insert(0, {str(SCENARIOS.parent)!r})
sys.argv = {[str(SCENARIOS), str(folder / str(size)), *names]!r}
runpy.run_path(sys.argv[0], run_name="__main__")
raise SystemExit
"""
    for code, output in ranks.finish(ranks.start(size, folder=folder, before=script)):
        assert code == 0, output
        assert "Warning" not in output, output


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dates(tmp_path_factory.mktemp("dates"), train=400, valid=20, test=20)
