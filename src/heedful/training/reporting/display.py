"""The progress display of a run started from Python: in a notebook, on a terminal, or none."""

from __future__ import annotations

import sys
import time
from typing import Any

from heedful.training.reporting.events import Listener, format_event, terminal_listener

REFRESH_SECONDS = 0.5
"""A notebook's display is updated at most this often while a stage runs."""


def progress_listeners(show_progress: bool | None) -> tuple[Listener, ...]:
    """The listeners that display progress. `show_progress` None: in a notebook and on a terminal only."""
    if show_progress is False:
        return ()
    if in_notebook():
        return (NotebookDisplay(),)
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    return (terminal_listener(),) if show_progress or on_terminal else ()


def in_notebook() -> bool:
    """Whether this program is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class NotebookDisplay:
    """Shows notes, evaluations and the latest step in one output of a notebook's cell, updated in place."""

    def __init__(self) -> None:
        from IPython.display import display  # installed in a notebook

        self.lines: list[str] = []
        self.shown = 0.0
        self.handle = display({"text/plain": ""}, raw=True, display_id=True)

    def __call__(self, event: dict[str, Any]) -> None:
        line, is_stage = format_event(event), event["kind"] == "stage"
        if event["kind"] in ("note", "evaluation"):
            self.lines.append(line)
            line = ""
        ended = is_stage and event["ended"]
        if is_stage and not ended and time.monotonic() < self.shown + REFRESH_SECONDS:
            return
        text = "\n".join([*self.lines, *([line] if line and not ended else [])])
        self.handle.update({"text/plain": text}, raw=True)
        self.shown = time.monotonic()
