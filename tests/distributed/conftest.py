"""Several processes at once."""

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

WALKS = Path(__file__).with_name("walks.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """Of this process, less any place it may itself have among others."""
    places = ("SLURM_", "TORCHELASTIC", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(places)}
    return {**clean, "OMP_NUM_THREADS": "1", **more}


def started(*command: str | Path, folder: Path, **more: str) -> subprocess.Popen[str]:
    """A process with an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment(**more),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Ranks:
    """Processes that train one model, one for each rank, as SLURM starts them."""

    def __init__(self, fork_server: Any, logs: Path) -> None:
        self.fork_server, self.logs = fork_server, logs

    def start(self, size: int, *words: str | Path, folder: Path, before: str = "", **more: str) -> list[Any]:
        place = {"SLURM_NTASKS": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), **more}
        return [
            self.fork_server.start(
                *words,
                folder=folder,
                log=self.logs / f"{self.fork_server.started}.log",
                before=f"import os\nos.environ.update({place | own!r})\n{before}",
            )
            for own in ({"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(size))
        ]

    def finish(self, processes: list[Any], seconds: float = 300) -> list[tuple[int, str]]:
        """How each ended, and what it had said."""
        for process in processes:
            process.wait_until(process.has_ended, seconds)
        return [(done.code, done.output) for done in (process.wait() for process in processes)]


@pytest.fixture(scope="session")
def interpreter() -> Any:
    return started


@pytest.fixture(scope="session")
def ranks(fork_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(fork_server, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def walks() -> ModuleType:
    described = importlib.util.spec_from_file_location("walks", WALKS)
    assert described is not None
    assert described.loader is not None
    module = sys.modules["walks"] = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def walked(walks: Any, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every walk by two processes, started once for all."""
    folder = tmp_path_factory.mktemp("walked")
    _walk(ranks, 2, folder, [*walks.WALKS, "disk full for the second", "nothing is put together"])
    return folder


@pytest.fixture(scope="session")
def walked_by_three(walks: Any, ranks: Ranks, walked: Path) -> Path:
    """Those that go on from the middle of another, and one with fewer rows than processes."""
    _walk(ranks, 3, walked, [name for name, walk in walks.WALKS.items() if walk.resume or "fewer" in name])
    return walked / "3"


def _walk(ranks: Ranks, size: int, folder: Path, names: list[str]) -> None:
    instead = f"""
import runpy, sys
sys.path.insert(0, {str(WALKS.parent)!r})
sys.argv = {[str(WALKS), str(folder / str(size)), *names]!r}
runpy.run_path(sys.argv[0], run_name="__main__")
raise SystemExit
"""
    for code, said in ranks.finish(ranks.start(size, folder=folder, before=instead)):
        assert code == 0, said
        assert "Warning" not in said, said


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dates(tmp_path_factory.mktemp("dates"), train=400, valid=20, test=20)
