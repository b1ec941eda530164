"""What the latest steps gave, left on the device until somebody wants to know."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from heedful.errors import NonFiniteError
from heedful.training.reporting.events import Events
from heedful.training.run_progress import Progress
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


class Numbers:
    """A step's loss and the length of its gradient, on their way from the device: nothing waits until they are read."""

    def __init__(self, result: StepResult) -> None:
        both = torch.stack([result.loss, result.gradient])
        self.found = both.to("cpu", non_blocking=both.is_cuda)
        self.there = torch.cuda.current_stream().record_event() if both.is_cuda else None

    def read(self) -> tuple[float, float]:
        if self.there is not None:
            self.there.synchronize()
        loss, gradient = self.found.tolist()
        return loss, gradient


class Tally:
    """Counts what steps give into the progress. Only `settle` and `close` wait for the device."""

    def __init__(self, progress: Progress, events: Events) -> None:
        self.progress, self.events = progress, events
        self.recent: list[tuple[str, int, Numbers]] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        self.since, self.steps, self.tokens = time.monotonic(), 0, 0

    def add(self, result: StepResult) -> None:
        """A step just taken."""
        progress = self.progress
        place = f"step {progress.step} (epoch {progress.epoch}, batch {progress.index - 1})"
        self.recent.append((place, result.tokens, Numbers(result)))
        self.steps, self.tokens = self.steps + 1, self.tokens + result.tokens

    def settle(self, *, but: int = 0) -> float:
        """Add up what has come since last time, `but` for the newest few; gives the last gradient's length. Too many
        bad steps are an error."""
        gradient, ready = math.nan, len(self.recent) - but
        for place, tokens, numbers in self.recent[:ready]:
            loss, gradient = numbers.read()
            if math.isfinite(loss) and math.isfinite(gradient):
                self._count(loss, tokens)
            else:
                self._skip(place, f"loss {loss:.3g}, gradient {gradient:.3g}")
        self.recent = self.recent[ready:]
        return gradient

    def close(self, *, but: int = 0) -> Window:
        """Everything since the last report, which ends here."""
        progress, gradient = self.progress, self.settle(but=but)
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
