"""Commands of heedful that run in processes of their own, each with its output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heedful.errors import UsageError

OUTPUT_FOLDER = ".studio"
LAST_LINES, LAST_BYTES = 12, 20_000
COMMAND = (sys.executable, "-m", "heedful")


class ChildProcesses:
    """Starts and interrupts commands by name. They outlive the server: each is in a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start `heedful …` in the folder; UsageError while the last one of this name runs."""
        if self.is_running(name):
            raise UsageError(f"{name} is running")
        output = self._output(name)
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("wb") as file:
            self._children[name] = subprocess.Popen(
                [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def is_running(self, name: str) -> bool:
        """Whether the process of this name has been started here and has not ended."""
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def has_ended(self, name: str) -> bool:
        """Whether the process of this name has been started here and has ended."""
        child = self._children.get(name)
        return child is not None and child.poll() is not None

    def running(self) -> list[str]:
        """The names of the running commands."""
        return [name for name in self._children if self.is_running(name)]

    def interrupt(self, name: str) -> None:
        """Press Ctrl-C: the command saves what it has and ends."""
        self._children[name].send_signal(signal.SIGINT)

    def last_lines(self, name: str) -> list[str]:
        """The last lines of a command's output; a progress line that was rewritten counts once."""
        try:
            with self._output(name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        lines = text.replace("\r\n", "\n").rstrip("\r").split("\n")
        return [line.rpartition("\r")[2] for line in lines if line.strip()][-LAST_LINES:]

    def _output(self, name: str) -> Path:
        return self.folder / OUTPUT_FOLDER / f"{name}.log"
