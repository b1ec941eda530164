"""What the latest steps gave, left on the device until somebody wants to know."""

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
"""Steps without a finite loss and gradient, one after the other, before a run is given up."""


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
    """A step's loss and the length of its gradient, on their way from the device: nothing waits until they are read."""

    def __init__(self, result: StepResult) -> None:
        both = torch.stack([result.loss, result.grad_norm])
        self.found = both.to("cpu", non_blocking=both.is_cuda)
        self.there = torch.cuda.current_stream().record_event() if both.is_cuda else None

    def read(self) -> tuple[float, float]:
        if self.there is not None:
            self.there.synchronize()
        loss, gradient = self.found.tolist()
        return loss, gradient


class TrainingMetrics:
    """Counts what steps give into the progress. Only `settle` and `close` wait for the device."""

    def __init__(self, progress: RunProgress, events: Events) -> None:
        self.progress, self.events = progress, events
        self.recent: list[tuple[str, int, PendingMetrics]] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        self.since, self.steps, self.tokens = time.monotonic(), 0, 0

    def add(self, result: StepResult) -> None:
        """A step just taken."""
        progress = self.progress
        place = f"step {progress.step} (epoch {progress.epoch}, batch {progress.batch_index - 1})"
        self.recent.append((place, result.tokens, PendingMetrics(result)))
        self.steps, self.tokens = self.steps + 1, self.tokens + result.tokens

    def collect(self, *, pending: int = 0) -> float:
        """Add up what has come since last time, `but` for the newest few; gives the last gradient's length. Too many
        bad steps are an error."""
        gradient, ready = math.nan, len(self.recent) - pending
        for place, tokens, numbers in self.recent[:ready]:
            loss, gradient = numbers.read()
            if math.isfinite(loss) and math.isfinite(gradient):
                self._count(loss, tokens)
            else:
                self._skip(place, f"loss {loss:.3g}, gradient {gradient:.3g}")
        self.recent = self.recent[ready:]
        return gradient

    def close_window(self, *, pending: int = 0) -> MetricsWindow:
        """Everything since the last report, which ends here."""
        progress, gradient = self.progress, self.collect(pending=pending)
        loss = progress.window_loss / progress.window_labels if progress.window_labels else math.nan
        window = MetricsWindow(loss, gradient, self.steps, self.tokens, max(1e-9, time.monotonic() - self.since))
        progress.window_loss, progress.window_labels = 0.0, 0
        self.restart_clock()
        return window

    def _count(self, loss: float, labels: int) -> None:
        progress = self.progress
        progress.window_loss, progress.window_labels, progress.skipped_in_a_row = progress.window_loss + loss, progress.window_labels + labels, 0

    def _skip(self, place: str, why: str) -> None:
        """Its update was not made: the step itself saw to that."""
        progress = self.progress
        progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
        self.events.emit("note", step=progress.step, text=f"skipped {place}: {why}")
        if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"the loss or gradient was not finite {MAX_SKIPPED_IN_A_ROW} times in a row, last at {place}: {why}; "
                "lower training.learning_rate, or look at the text there"
            )
