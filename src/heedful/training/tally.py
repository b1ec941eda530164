"""What the latest steps gave, left on the device until somebody wants to know."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from heedful.errors import NonFiniteError
from heedful.training.events import Events
from heedful.training.progress import Progress
from heedful.training.step import StepResult

MOST_SKIPPED = 5
"""Steps without a finite loss and gradient, one after the other, before a run is given up."""


@dataclass(frozen=True)
class Window:
    """The steps between two reports."""

    loss: float
    """Per label."""
    gradient: float
    steps: int
    tokens: int
    seconds: float


class Tally:
    """Counts what steps give into the progress. Only `settle` and `close` wait for the device."""

    def __init__(self, progress: Progress, events: Events) -> None:
        self.progress, self.events = progress, events
        self.recent: list[tuple[str, StepResult]] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        self.since, self.steps, self.tokens = time.monotonic(), 0, 0

    def add(self, result: StepResult) -> None:
        """A step just taken."""
        progress = self.progress
        place = f"step {progress.step} (epoch {progress.epoch}, batch {progress.index - 1})"
        self.recent.append((place, result))
        self.steps, self.tokens = self.steps + 1, self.tokens + result.tokens

    def settle(self) -> float:
        """Add up what has come since last time; gives the last gradient's length. Too many bad steps are an error."""
        if not self.recent:
            return math.nan
        read = torch.stack([torch.stack([result.loss, result.gradient]) for _, result in self.recent]).tolist()
        for (place, result), (loss, gradient) in zip(self.recent, read, strict=True):
            if math.isfinite(loss) and math.isfinite(gradient):
                self._count(loss, result.tokens)
            else:
                self._skip(place, f"loss {loss:.3g}, gradient {gradient:.3g}")
        self.recent = []
        return float(read[-1][1])

    def close(self) -> Window:
        """Everything since the last report, which ends here."""
        progress, gradient = self.progress, self.settle()
        loss = progress.loss / progress.labels if progress.labels else math.nan
        window = Window(loss, gradient, self.steps, self.tokens, max(1e-9, time.monotonic() - self.since))
        progress.loss, progress.labels = 0.0, 0
        self.restart_clock()
        return window

    def _count(self, loss: float, labels: int) -> None:
        progress = self.progress
        progress.loss, progress.labels, progress.skipped_in_a_row = progress.loss + loss, progress.labels + labels, 0

    def _skip(self, place: str, why: str) -> None:
        """Its update was not made: the step itself saw to that."""
        progress = self.progress
        progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
        self.events.emit("note", step=progress.step, text=f"skipped {place}: {why}")
        if progress.skipped_in_a_row >= MOST_SKIPPED:
            raise NonFiniteError(
                f"the loss or gradient was not finite {MOST_SKIPPED} times in a row, last at {place}: {why}; "
                "lower training.learning_rate, or look at the text there"
            )
