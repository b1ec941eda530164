"""Progress of long stages before and after training, shown only once a stage has taken a while."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

DELAY_SECONDS = 2.0
"""Seconds before a stage's progress is first shown."""


class DelayedDisplay:
    """Shows the latest event of a stage after `DELAY_SECONDS`, then every `every` seconds until the stage ends.

    It runs in a thread, because some long stages, such as learning merges, send no events meanwhile.
    """

    def __init__(self, show: Callable[[dict[str, Any]], object], *, every: float) -> None:
        self.show, self.every = show, every
        self.latest: dict[str, Any] = {}
        self._ended, self._thread = Event(), Thread()

    def __call__(self, event: dict[str, Any]) -> None:
        self.latest = event
        if event["ended"]:
            self._ended.set()
            self._thread.join()
        elif not self._thread.is_alive():
            self._ended.clear()
            self._thread = Thread(target=self._watch, daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        pause = DELAY_SECONDS
        while not self._ended.wait(pause):
            self.show(self.latest)
            pause = self.every


class StageProgressBar:
    """A progress bar on a terminal, removed when its stage ends."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True)
        self.delayed = DelayedDisplay(self._show, every=0.2)

    def __call__(self, event: dict[str, Any]) -> None:
        self.delayed(event)
        if event["ended"] and self.progress.task_ids:
            self.progress.stop()
            self.progress.remove_task(self.progress.task_ids[0])

    def _show(self, event: dict[str, Any]) -> None:
        # All input is read but the stage continues for an unknown time: show an indeterminate bar.
        total = event["total"] if event["completed"] < event["total"] else None
        if self.progress.task_ids:
            self.progress.update(self.progress.task_ids[0], completed=event["completed"], total=total)
        else:
            self.progress.add_task(event["name"], completed=event["completed"], total=total)
            self.progress.start()
