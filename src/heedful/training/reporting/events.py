"""Events of a run and their listeners: terminal, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heedful.errors import UsageError
from heedful.files import atomic_file
from heedful.quantities import format_duration
from heedful.syntax import argument
from heedful.training.reporting.progress_bar import DelayedDisplay, StageProgressBar

Listener = Callable[[dict[str, Any]], None]


class Events:
    """Sends each event, with the seconds since the start of the run, to every listener."""

    def __init__(self, *listeners: Listener, start: float | None = None, elapsed_before: float = 0.0) -> None:
        self.listeners = listeners
        self.start = (time.monotonic() if start is None else start) - elapsed_before
        """When the run began (`time.monotonic`), moved back by the time before an interruption."""
        self.phases: dict[str, float] = {}
        """Seconds of each phase of the run that has ended, in their order."""
        self._phase_began = self.start + elapsed_before

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.start

    def end_phase(self, name: str) -> None:
        """End the current phase under this name; the next one begins."""
        now = time.monotonic()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._phase_began
        self._phase_began = now

    def emit(self, kind: str, **facts: Any) -> None:
        """Send an event of this kind, with its facts, to every listener."""
        event = {"kind": kind, "seconds": round(self.seconds, 3), **facts}
        for listener in self.listeners:
            listener(event)

    def note(self, text: str) -> None:
        """Emit a line of text."""
        self.emit("note", text=text)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], object]]:
        """Report the progress of `total` bytes or texts; yields a function to call with the count just completed."""
        completed = 0

        def advance(count: int) -> None:
            nonlocal completed
            completed += count
            self.emit("stage", name=name, completed=completed, total=total, ended=False)

        advance(0)
        try:
            yield advance
        finally:
            self.emit("stage", name=name, completed=completed, total=total, ended=True)


class MetricsFile:
    """Appends events to metrics.jsonl, one JSON object a line, without those only for a display."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def truncate_after(self, step: int) -> None:
        """Remove the lines of later steps, which a resumed run will repeat, and incomplete lines."""
        if not self.file.exists():
            return
        with (
            self.file.open(encoding="utf-8", errors="replace") as lines,
            atomic_file(self.file) as temporary,
            temporary.open("w", encoding="utf-8") as kept,
        ):
            kept.writelines(line for line in lines if 0 <= _step_of(line) <= step)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] in ("begin", "end", "stage"):
            return
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(event, ensure_ascii=False) + "\n")


def _step_of(line: str) -> int:
    """The step of a line; 0 for events of the whole run, -1 for lines that are not events."""
    try:
        return int(json.loads(line).get("step", 0)) if line.endswith("\n") else -1
    except (ValueError, AttributeError, TypeError):
        return -1


class TensorBoard:
    """Writes numbers as TensorBoard scalars; those of an interrupted run after `step` are purged."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        self.writer = summary_writer()(str(folder), purge_step=step + 1 if step else None)

    def __call__(self, event: dict[str, Any]) -> None:
        numbers = {**event, **event.get("scores", {})}
        for name, value in numbers.items():
            if "step" in event and type(value) in (int, float) and name not in ("step", "steps", "seconds"):
                self.writer.add_scalar(f"{event['kind']}/{name}", value, event["step"])
        if event["kind"] in ("evaluation", "end"):
            self.writer.flush()


def summary_writer() -> Any:
    """Import TensorBoard's writer; the error for a missing one has the install command."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(f"{argument('tensorboard')} needs TensorBoard: pip install 'heedful[tensorboard]'") from None
    return SummaryWriter


def terminal_listener(stream: Any = None) -> Listener:
    """A live table on a terminal, plain lines elsewhere."""
    out = stream or sys.stderr
    return LiveTable(out) if out.isatty() else PlainLines(out)


class PlainLines:
    """Prints one line an event, for logs and pipes; a pipe closed by its reader does not stop the run."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.latest = stream, ""
        self.delayed = DelayedDisplay(self._print, every=10.0)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "stage":
            self.delayed(event)
        else:
            self._print(event)

    def _print(self, event: dict[str, Any]) -> None:
        line = format_event(event)
        if not line or line == self.latest:
            return
        self.latest = line
        try:
            print(line, file=self.stream, flush=True)
        except BrokenPipeError:  # `2>&1 | head -1`: metrics.jsonl and the card have everything
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def format_event(event: dict[str, Any]) -> str:
    """An event as one line of text; empty for events that are not printed."""
    steps = event.get("steps", 0)
    match event["kind"]:
        case "note":
            return str(event["text"])
        case "stage":
            return f"{event['name']}: {event['completed'] / max(1, event['total']):.0%}"
        case "step":
            return (
                f"step {event['step']:>6}/{steps}  loss {event['loss']:.4f}  "
                f"{event['tokens_per_second']:,.0f} {event.get('unit', 'tokens')}/s  {event['memory_gib']:.2f} GiB  "
                f"{format_duration(event['seconds_left'])} left"
            )
        case "evaluation":
            scores = "  ".join(f"{name} {value:.4g}" for name, value in event["scores"].items())
            return f"step {event['step']:>6}/{steps}  {scores}{'  (best)' if event['best'] else ''}"
        case _:
            return ""


class LiveTable:
    """A live terminal display: progress bar, latest step, recent evaluations and a sample output."""

    def __init__(self, stream: Any) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(file=stream, markup=False, highlight=False)  # texts of users may look like markup
        self.live = Live(console=self.console, refresh_per_second=4, transient=False)
        self.bar = StageProgressBar(self.console)
        self.latest_step: dict[str, Any] = {}
        self.evaluations: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "note":
                self.live.console.print(event["text"])
            case "stage":
                self.bar(event)
            case "begin":
                self.live.start()
            case "step":
                self.latest_step = event
                self.live.update(self._table())
            case "evaluation":
                self.evaluations = [*self.evaluations[-7:], event]
                self.live.update(self._table())
            case "end":
                self.live.stop()

    def _table(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        parts: list[Any] = []
        if self.latest_step:
            bar = ProgressBar(total=self.latest_step["steps"], completed=self.latest_step["step"])
            parts += [bar, format_event(self.latest_step)]
        if self.evaluations:
            table = Table(box=None, header_style="bold")
            table.add_column("step", justify="right")
            for name in self.evaluations[-1]["scores"]:
                table.add_column(name, justify="right")
            table.add_column("")
            for event in self.evaluations:
                numbers = [f"{value:.4g}" for value in event["scores"].values()]
                table.add_row(str(event["step"]), *numbers, "best" if event["best"] else "")
            parts.append(table)
            parts += [f"  {line}" for line in self.evaluations[-1].get("sample", ())]
        return Group(*parts)
