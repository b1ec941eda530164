"""Event listeners: plain lines in a pipe, a live table on a terminal, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from heedful.training.reporting.events import (
    Events,
    LiveTable,
    MetricsFile,
    PlainLines,
    TensorBoard,
    format_duration,
    terminal_listener,
)

STEP = {"step": 10, "steps": 50, "loss": 1.25, "tokens_per_second": 1234.5, "seconds_per_step": 3.0, "memory_gib": 0.5}


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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0s"), (59.4, "59s"), (90.0, "1m30s"), (3700.0, "1h01m"), (-5.0, "0s")]
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
