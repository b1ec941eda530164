"""Stages before the first step and after the last, shown only while they keep a person waiting."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

DELAY_SECONDS = 2.0
"""Seconds a stage may take without a word."""


class DelayedDisplay:
    """Shows the latest news of a stage once it has taken long, then again and again until it ends.

    A thread of its own does so, because the longest waits, such as learning merges, bring no news at all.
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
    """A progress bar on a terminal, gone when its stage ends."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True)
        self.waiting = DelayedDisplay(self._show, every=0.2)

    def __call__(self, event: dict[str, Any]) -> None:
        self.waiting(event)
        if event["ended"] and self.progress.task_ids:
            self.progress.stop()
            self.progress.remove_task(self.progress.task_ids[0])

    def _show(self, event: dict[str, Any]) -> None:
        # All is read, but the stage goes on: nobody knows how long, so the bar only shows that it lives.
        size = event["size"] if event["done"] < event["size"] else None
        if self.progress.task_ids:
            self.progress.update(self.progress.task_ids[0], completed=event["done"], total=size)
        else:
            self.progress.add_task(event["what"], completed=event["done"], total=size)
            self.progress.start()
