"""Loss and gradient norm of recent steps, read from the device only when they are reported."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from heedful.errors import NonFiniteError
from heedful.training.reporting.events import Events
from heedful.training.run_progress import RunProgress
from heedful.training.step import StepResult

MAX_SKIPPED_IN_A_ROW = 5
"""Consecutive steps without a finite loss and gradient after which a run fails."""


@dataclass(frozen=True)
class MetricsWindow:
    """The steps between two reports."""

    loss: float
    """Per label."""
    grad_norm: float
    steps: int
    tokens: int
    seconds: float


class PendingMetrics:
    """Loss and gradient norm of a step, copied from the device asynchronously; `read` waits for the copy."""

    def __init__(self, result: StepResult) -> None:
        values = torch.stack([result.loss, result.grad_norm])
        self.values = values.to("cpu", non_blocking=values.is_cuda)
        self.copied = torch.cuda.current_stream().record_event() if values.is_cuda else None

    def read(self) -> tuple[float, float]:
        if self.copied is not None:
            self.copied.synchronize()
        loss, grad_norm = self.values.tolist()
        return loss, grad_norm


class TrainingMetrics:
    """Accumulates step results into the run's progress. Only `collect` and `close_window` wait for the device."""

    def __init__(self, progress: RunProgress, events: Events) -> None:
        self.progress, self.events = progress, events
        self.recent: list[tuple[str, int, PendingMetrics]] = []
        self.timed_steps, self.timed_seconds = 0, 0.0
        """Steps of all windows, and their seconds: evaluations and a first step are not among them."""
        self.restart_clock()

    def restart_clock(self) -> None:
        self.since, self.steps, self.tokens = time.monotonic(), 0, 0

    def add(self, result: StepResult) -> None:
        progress = self.progress
        position = f"step {progress.step} (epoch {progress.epoch}, batch {progress.batch_index - 1})"
        self.recent.append((position, result.tokens, PendingMetrics(result)))
        self.steps, self.tokens = self.steps + 1, self.tokens + result.tokens

    def collect(self, *, pending: int = 0) -> float:
        """Count all steps but the newest `pending`; returns the last gradient norm.

        Too many skipped steps in a row are an error.
        """
        grad_norm, ready = math.nan, len(self.recent) - pending
        for position, tokens, metrics in self.recent[:ready]:
            loss, grad_norm = metrics.read()
            if math.isfinite(loss) and math.isfinite(grad_norm):
                self.progress.window_loss += loss
                self.progress.window_labels += tokens
                self.progress.skipped_in_a_row = 0
            else:
                self._count_skipped(position, f"loss {loss:.3g}, gradient {grad_norm:.3g}")
        self.recent = self.recent[ready:]
        return grad_norm

    def close_window(self, *, pending: int = 0) -> MetricsWindow:
        """Return the metrics since the last report and start a new window."""
        progress, grad_norm = self.progress, self.collect(pending=pending)
        loss = progress.window_loss / progress.window_labels if progress.window_labels else math.nan
        seconds = max(1e-9, time.monotonic() - self.since)
        window = MetricsWindow(loss, grad_norm, max(1, self.steps), self.tokens, seconds)
        progress.window_loss, progress.window_labels = 0.0, 0
        self.timed_steps, self.timed_seconds = self.timed_steps + window.steps, self.timed_seconds + window.seconds
        self.restart_clock()
        return window

    @property
    def seconds_per_step(self) -> float:
        """The mean over all windows."""
        return self.timed_seconds / max(1, self.timed_steps)

    def _count_skipped(self, position: str, reason: str) -> None:
        """Count a step whose update the optimizer has already skipped on the device."""
        progress = self.progress
        progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
        self.events.emit("note", step=progress.step, text=f"skipped {position}: {reason}")
        if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"loss or gradient not finite {MAX_SKIPPED_IN_A_ROW} times in a row, last at {position}: {reason}; "
                "lower training.learning_rate, or check the text there"
            )
