"""Training runs of the studio: child processes of `heedful train`, and every other run in the folder, by its log."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.errors import UsageError
from heedful.studio.child_processes import COMMAND, ChildProcesses
from heedful.studio.workspace import NAME, Workspace
from heedful.training.checkpoint.run_manifest import LOCK_FILE, STATE_FOLDER
from heedful.training.run_catalog import LOG_FILE, list_runs, read_events


class TrainingRuns:
    """Starts, stops, resumes and follows runs. A run outlives the server that started it: it can be resumed."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._processes = ChildProcesses(workspace.folder)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start `heedful train …` in a new folder of this name."""
        folder = self.workspace.new_run_folder(name)
        self._processes.start(name, ["train", *arguments, "--out", str(folder)])

    def start_demo(self, name: str) -> None:
        """Start the demo: a translator of dates, its text included."""
        folder = self.workspace.new_run_folder(name)
        self._processes.start(name, ["train", *_demo_arguments(self.workspace.folder), "--out", str(folder)])

    def resume(self, name: str) -> None:
        """Resume an interrupted run."""
        folder = self.workspace.run_folder(name)
        if is_running(folder):
            raise UsageError(f"{name} is running")
        self._processes.start(name, ["train", "--resume", str(folder)])

    def stop(self, name: str) -> None:
        """Let a run save and stop, as Ctrl-C does; it can be resumed. Also a run that a shell has started."""
        if self._processes.is_running(name):
            self._processes.interrupt(name)
            return
        process = training_process(self.workspace.run_folder(name))
        if process is None:
            raise UsageError(f"{name} is not running on this machine")
        try:
            os.kill(process, signal.SIGINT)
        except OSError:
            raise UsageError(f"{name} cannot be stopped from here; press Ctrl-C where it was started") from None

    def all_runs(self) -> list[dict[str, Any]]:
        """Every run in the folder, those starting up included, the newest first."""
        runs = [
            {
                "name": Path(run.folder).name,
                "task": run.task,
                "state": "running" if is_running(Path(run.folder)) else run.state,
                "date": run.date,
                "data": list(run.data),
                "parameters": run.parameters,
                "steps": run.steps,
                "result": run.result,
                "is_useful": run.is_useful,
            }
            for run in reversed(list_runs(self.workspace.folder))
            if Path(run.folder) != self.workspace.folder and not Path(run.folder).is_symlink()
        ]
        known = {run["name"] for run in runs}
        starting = [name for name in self._processes.running() if name not in known]
        return [{"name": name, "state": "starting", "result": "reading the text"} for name in starting] + runs

    def follow(self, name: str, after: int) -> dict[str, Any]:
        """The events of a run's log from number `after` on, its state, and the last lines it printed."""
        folder = self.workspace.folder / name
        log, ended = folder / LOG_FILE, self._processes.has_ended(name)
        is_child = self._processes.is_running(name)
        has_log = NAME.fullmatch(name) is not None and not folder.is_symlink() and log.is_file()
        if not (is_child or ended or has_log):
            raise UsageError("there is no such run")
        events = list(read_events(log)) if has_log else []
        finished = any(event["kind"] == "done" for event in events)
        running = is_child or (has_log and is_running(folder))
        state = "running" if running else "finished" if finished else "failed" if ended and not events else "unfinished"
        return {
            "name": name,
            "state": "starting" if state == "running" and not events else state,
            "events": events[after:],
            "next": len(events),
            "output": self._processes.last_lines(name),
            "can_stop": running and (is_child or training_process(folder) is not None),
        }

    def run_command(self, arguments: Sequence[str], seconds: float = 120.0) -> Any:
        """Run a command and return the JSON that it prints; its error as a UsageError."""
        try:
            done = subprocess.run(
                [*COMMAND, *arguments, "--json"], capture_output=True, timeout=seconds, cwd=self.workspace.folder
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"heedful {arguments[0]} took longer than {seconds:.0f}s; run it in a shell") from None
        text = done.stdout.decode("utf-8", "replace").strip()
        if done.returncode and not text:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
            raise UsageError(lines[-1].removeprefix("heedful: "))
        return json.loads(text.splitlines()[-1])


def is_running(folder: Path) -> bool:
    """Whether a process holds the lock of a run."""
    try:
        with (folder / STATE_FOLDER / LOCK_FILE).open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


FLOCK = "hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""


def training_process(folder: Path) -> int | None:
    """The process that holds the lock of a run, as the kernel of Linux names it; None if there is none here."""
    if sys.platform != "linux":
        return None
    try:
        with (folder / STATE_FOLDER / LOCK_FILE).open("r+") as file:
            wanted = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_, process = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
    except OSError:
        return None
    return int(process) if kind != fcntl.F_UNLCK and process > 0 else None


def _demo_arguments(folder: Path) -> list[str]:
    from heedful.training.dates_demo import demo_arguments

    return demo_arguments(folder / "demo-data")
