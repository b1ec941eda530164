"""A long stage shows itself; a short one says nothing."""

from __future__ import annotations

import io
import time

import pytest

from heedful.training.reporting import progress_bar as waiting
from heedful.training.reporting.events import Events, terminal_listener


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_short_stage_says_nothing(stream: type[io.StringIO]) -> None:
    out = stream()
    with Events(terminal_listener(out)).stage("reading", 100) as watch:
        watch(100)
    assert out.getvalue() == ""


def test_a_long_stage_is_a_line_now_and_then_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "AFTER", 0.02)
    out = io.StringIO()
    events = Events(terminal_listener(out))
    for what in ("reading", "encoding"):
        with events.stage(what, 5_000_000) as watch:
            watch(2_000_000)
            time.sleep(0.2)
    assert out.getvalue().splitlines() == ["reading: 40%", "encoding: 40%"]


def test_a_long_stage_is_a_bar_on_a_terminal_even_while_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "AFTER", 0.02)
    out = Terminal()
    events = Events(terminal_listener(out))
    for what in ("reading", "learning a vocabulary"):
        with events.stage(what, 5_000_000) as watch:
            watch(2_000_000)
            time.sleep(0.3)
        assert what in out.getvalue()
        assert "40%" in out.getvalue()


def test_an_error_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "AFTER", 0.02)
    told: list[dict[str, object]] = []

    def fail() -> None:
        with Events(told.append, terminal_listener(Terminal())).stage("reading", 1):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert told[-1]["ended"]
