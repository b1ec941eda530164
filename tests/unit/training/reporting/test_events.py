"""Event listeners: plain lines in a pipe, a live table on a terminal, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from heedful.training.reporting.events import (
    Events,
    LiveTable,
    MetricsFile,
    PlainLines,
    TensorBoard,
    terminal_listener,
)

STEP = {"step": 10, "steps": 50, "loss": 1.25, "tokens_per_second": 1234.5, "seconds_left": 120.0, "memory_gib": 0.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    listener = terminal_listener(out)
    assert isinstance(listener, PlainLines)
    events = Events(listener)
    events.emit("step", **STEP)
    events.emit("evaluation", step=10, steps=50, scores={"bleu": 31.5}, best=True, sample=())
    events.emit("note", text="read 3 pairs")
    lines = out.getvalue().splitlines()
    assert "10/50" in lines[0]
    assert "1.2500" in lines[0]
    assert "2m00s left" in lines[0]
    assert "bleu 31.5" in lines[1]
    assert "(best)" in lines[1]
    assert lines[2] == "read 3 pairs"


def test_terminal_gets_a_live_table_with_scores_and_a_sample() -> None:
    out = Terminal()
    listener = terminal_listener(out)
    assert isinstance(listener, LiveTable)
    events = Events(listener)
    events.emit("begin")
    events.emit("step", **STEP)
    events.emit("evaluation", step=10, steps=50, scores={"bleu": 31.5}, best=True, sample=("source  a", "model   b"))
    events.emit("end")
    shown = out.getvalue()
    assert "bleu" in shown
    assert "31.5" in shown
    assert "model   b" in shown


def test_brackets_in_texts_are_not_markup_on_a_terminal() -> None:
    out = Terminal()
    events = Events(terminal_listener(out))
    events.note("see [bold] and [/x]")
    events.emit("begin")
    events.emit("evaluation", step=10, steps=50, scores={"bleu": 31.5}, best=True, sample=("model   a [/b] c [red]",))
    events.emit("end")
    assert "see [bold] and [/x]" in out.getvalue()
    assert "a [/b] c [red]" in out.getvalue()


def test_metrics_file_has_one_json_line_an_event_with_its_time(tmp_path: Path) -> None:
    events = Events(MetricsFile(tmp_path / "metrics.jsonl"))
    events.emit("step", **STEP)
    events.emit("evaluation", step=10, scores={"bleu": 31.5})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "evaluation"]
    assert lines[0]["loss"] == 1.25
    assert 0 <= lines[0]["seconds"] <= lines[1]["seconds"]


def test_tensorboard_gets_losses_and_scores(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = Events(TensorBoard(tmp_path))
    for step in (10, 20):
        events.emit("step", **{**STEP, "step": step, "loss": 1 / step})
    events.emit("evaluation", step=20, steps=50, scores={"bleu": 31.5, "valid_loss": 2.0}, best=True, sample=())
    events.emit("end")
    written = EventAccumulator(str(tmp_path))
    written.Reload()
    assert [(point.step, round(point.value, 4)) for point in written.Scalars("step/loss")] == [(10, 0.1), (20, 0.05)]
    assert [(point.step, point.value) for point in written.Scalars("evaluation/bleu")] == [(20, 31.5)]
    assert "evaluation/valid_loss" in written.Tags()["scalars"]
    assert not {"evaluation/best", "step/steps"} & set(written.Tags()["scalars"])


def test_a_run_continues_after_its_output_pipe_is_closed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        events = Events(PlainLines(stream))
        events.note("a line that is not read")
        events.note("nor this")


def test_phases_of_a_run_add_up_to_the_time_since_its_start() -> None:
    """The first phase begins with the command, before any event could be sent."""
    events = Events(start=time.monotonic() - 5.0)
    events.end_phase("start-up")
    events.end_phase("reading")
    events.end_phase("start-up")
    assert list(events.phases) == ["start-up", "reading"]
    assert events.phases["start-up"] == pytest.approx(5.0, abs=0.5)
    assert sum(events.phases.values()) == pytest.approx(events.seconds, abs=0.1)


def test_a_resumed_run_counts_the_time_before_it_was_interrupted_but_not_in_its_phases() -> None:
    events = Events(start=time.monotonic(), elapsed_before=100.0)
    events.end_phase("training")
    assert 100.0 <= events.seconds < 101.0
    assert events.phases["training"] < 1.0
