"""Progress in Python: in a notebook, on a terminal, and nowhere else unless requested."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from heedful.training.reporting.display import NotebookDisplay, progress_listeners
from heedful.training.reporting.events import Events, LiveTable, PlainLines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ZMQInteractiveShell:
    """Jupyter's kernel, by its name; Colab's is a subclass."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulate a notebook; returns the successive outputs of its cell."""
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell = type("Shell", (ZMQInteractiveShell,), {})()
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = lambda data, raw, display_id: handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


@pytest.mark.parametrize(
    ("stream", "show_progress", "kinds"),
    [
        (io.StringIO(), None, ()),
        (io.StringIO(), True, (PlainLines,)),
        (Terminal(), None, (LiveTable,)),
        (Terminal(), False, ()),
    ],
)
def test_a_script_shows_progress_on_a_terminal_or_on_request(
    monkeypatch: pytest.MonkeyPatch, stream: Any, show_progress: bool | None, kinds: tuple[type, ...]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert tuple(map(type, progress_listeners(show_progress))) == kinds


def test_a_notebook_shows_notes_evaluations_and_the_latest_step_in_one_output(notebook: list[str]) -> None:
    (listener,) = progress_listeners(None)
    assert isinstance(listener, NotebookDisplay)
    events = Events(listener)
    events.note("read 3 pairs")
    with events.stage("encoding", 10) as advance:
        for _ in range(10):
            advance(1)
    step = {
        "steps": 50,
        "loss": 1.25,
        "tokens_per_second": 1234.5,
        "seconds_per_step": 3.0,
        "seconds_left": 1.0,
        "memory_gib": 0.5,
    }
    events.emit("step", step=10, **step)
    events.emit("step", step=20, **step)
    events.emit("evaluation", step=20, steps=50, scores={"bleu": 31.5}, best=True)
    events.emit("end")
    assert len(notebook) < 12, "a stage's progress is not shown for every text"
    assert any("20/50" in text and "10/50" not in text for text in notebook)
    assert notebook[-1].splitlines() == ["read 3 pairs", "step     20/50  bleu 31.5  (best)"]
