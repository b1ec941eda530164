"""Long stages show progress, short ones do not."""

from __future__ import annotations

import io
import time

import pytest

from heedful.training.reporting import progress_bar
from heedful.training.reporting.events import Events, terminal_listener


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_short_stage_prints_nothing(stream: type[io.StringIO]) -> None:
    out = stream()
    with Events(terminal_listener(out)).stage("reading", 100) as advance:
        advance(100)
    assert out.getvalue() == ""


def test_long_stage_prints_lines_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "DELAY_SECONDS", 0.02)
    out = io.StringIO()
    events = Events(terminal_listener(out))
    for name in ("reading", "encoding"):
        with events.stage(name, 5_000_000) as advance:
            advance(2_000_000)
            time.sleep(0.2)
    assert out.getvalue().splitlines() == ["reading: 40%", "encoding: 40%"]


def test_long_stage_shows_a_bar_on_a_terminal_without_new_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "DELAY_SECONDS", 0.02)
    out = Terminal()
    events = Events(terminal_listener(out))
    for name in ("reading", "learning a vocabulary"):
        with events.stage(name, 5_000_000) as advance:
            advance(2_000_000)
            time.sleep(0.3)
        assert name in out.getvalue()
        assert "40%" in out.getvalue()


def test_error_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "DELAY_SECONDS", 0.02)
    events: list[dict[str, object]] = []

    def fail() -> None:
        with Events(events.append, terminal_listener(Terminal())).stage("reading", 1):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert events[-1]["ended"]
