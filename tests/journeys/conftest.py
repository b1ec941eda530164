"""Runs the `heedful` command as typed in a shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class CommandResult:
    """Exit code, standard output and standard error of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def heedful_command(fork_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CommandResult]:
    """Runs the command in a process of its own, without the test suite's shape checks, with a cache of this test's."""
    home = tmp_path_factory.mktemp("typed")

    def run(*words: str | Path, cwd: Path) -> CommandResult:
        files = {"log": home / "stderr", "output": home / "stdout"}
        cache = f"import os; os.environ['HEEDFUL_CACHE'] = {str(home / 'cache')!r}"
        done = fork_server.run(*words, folder=cwd, before=cache, **files)
        return CommandResult(done.code, files["output"].read_text(), done.output)

    return run
