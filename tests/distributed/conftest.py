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

from heedful.data.dates import write_dates

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


class Ranks:
    """Processes that train one model."""

    def __init__(self, size: int, *command: str | Path, folder: Path | None = None, **more: str) -> None:
        """One for each rank, as SLURM starts them."""
        place = {"SLURM_NTASKS": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), **more}
        self.processes = [
            self.started(*command, folder=folder, **place, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
            for rank in range(size)
        ]

    @staticmethod
    def started(*command: str | Path, folder: Path | None = None, **more: str) -> subprocess.Popen[str]:
        """One process."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=environment(**more),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, seconds: float = 300) -> list[tuple[int, str]]:
        """How each ended, and what it had said."""
        said = [process.communicate(timeout=seconds)[0] for process in self.processes]
        return [(process.returncode, words) for process, words in zip(self.processes, said, strict=True)]


@pytest.fixture(scope="session")
def ranks() -> type[Ranks]:
    return Ranks


@pytest.fixture(scope="session")
def walks() -> ModuleType:
    described = importlib.util.spec_from_file_location("walks", WALKS)
    assert described is not None
    assert described.loader is not None
    module = sys.modules["walks"] = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def walked(walks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every walk by two processes, started once for all."""
    folder = tmp_path_factory.mktemp("walked")
    _walk(2, folder, [*walks.WALKS, "disk full for the second", "nothing is put together"])
    return folder


@pytest.fixture(scope="session")
def walked_by_three(walks: Any, walked: Path) -> Path:
    """Those that go on from the middle of another, and one with fewer rows than processes."""
    _walk(3, walked, [name for name, walk in walks.WALKS.items() if walk.resume or "fewer" in name])
    return walked / "3"


def _walk(size: int, folder: Path, names: list[str]) -> None:
    for code, said in Ranks(size, WALKS, folder / str(size), *names).finish():
        assert code == 0, said
        assert "Warning" not in said, said


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dates(tmp_path_factory.mktemp("dates"), train=400, valid=20, test=20)
