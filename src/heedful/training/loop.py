"""The training loop: one for every objective and every family."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from heedful.data.batches import Batches
from heedful.errors import NonFiniteError
from heedful.objectives.objective import Objective
from heedful.training.averaging import ExponentialAverage, LastAverage
from heedful.training.events import Clock, Events
from heedful.training.machine import memory_in_use
from heedful.training.optimizers import Optimizer
from heedful.training.recipe import TrainingRecipe
from heedful.training.schedules import factor
from heedful.training.step import StepResult, train_step

MOST_SKIPPED = 5
"""Steps without a finite loss and gradient, one after the other, before the run is given up."""


class EpochBatches(Dataset[Any]):
    """One epoch as a list: any process can make its i-th batch from i alone."""

    def __init__(self, batches: Batches, epoch: int) -> None:
        self.batches, self.epoch = batches, epoch
        self.plan = batches.plan(epoch)

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Any:
        return self.batches.batch(self.epoch, self.plan[index])


@dataclass(frozen=True)
class Evaluation:
    """Scores of the model as it stands; `score` is the one to raise."""

    score: float
    scores: dict[str, float]
    sample: tuple[str, ...] = ()


@dataclass
class Progress:
    """Where a run stands: all that resuming needs besides tensors."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    best: float = -float("inf")
    best_step: int = 0
    stale: int = 0
    """Evaluations since the best."""
    tokens: int = 0
    loss: float = 0.0
    """Since the last report, summed over `labels`."""
    labels: int = 0
    skipped: int = 0
    """Steps that were not taken because their loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    history: list[dict[str, int | float]] = field(default_factory=list)


def is_finished(recipe: TrainingRecipe, progress: Progress) -> bool:
    """Whether all steps are taken, or patience is at an end."""
    return progress.step >= recipe.steps or 0 < recipe.patience <= progress.stale


@dataclass(frozen=True)
class Place:
    """Which step a result belongs to, and its last batch."""

    step: int
    epoch: int
    index: int

    def __str__(self) -> str:
        return f"step {self.step} (epoch {self.epoch}, batch {self.index})"


class Trainer:
    """A model, what it learns from, and how far it has got."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        recipe: TrainingRecipe,
        *,
        seed: int,
        device: torch.device,
        events: Events,
    ) -> None:
        self.model, self.objective, self.batches, self.recipe = model.to(device), objective, batches, recipe
        self.seed, self.device, self.events = seed, device, events
        self.optimizer = Optimizer(model, recipe)
        self.average: ExponentialAverage | LastAverage | None = None
        if recipe.average == "exponential":
            self.average = ExponentialAverage(model, recipe.average_decay)
        elif recipe.average == "last":
            self.average = LastAverage(model, recipe.average_last)
        self.progress = Progress()
        self.recent: list[tuple[Place, StepResult]] = []
        self.clock = Clock()

    def run(
        self,
        evaluate: Callable[[nn.Module], Evaluation],
        save_best: Callable[[nn.Module], object],
        after_step: Callable[[], object] = lambda: None,
    ) -> Progress:
        """Step until the recipe's end or until no evaluation gets better; the best model is saved on the way."""
        recipe, progress = self.recipe, self.progress
        stream = self.stream()
        self.clock.restart()
        while not self.finished:
            result = self.step(stream)
            self.recent.append((Place(progress.step, progress.epoch, progress.index - 1), result))
            self.clock.tick(result.tokens)
            evaluating = progress.step % recipe.evaluate_every == 0 or progress.step == recipe.steps
            if evaluating or progress.step % self._report_every() == 0:
                self._report()
            if evaluating:
                self._evaluate(evaluate, save_best)
            after_step()
        return progress

    @property
    def finished(self) -> bool:
        return is_finished(self.recipe, self.progress)

    def step(self, stream: Iterator[Any]) -> StepResult:
        """One update from the next batches of the stream."""
        recipe, progress = self.recipe, self.progress
        result = train_step(
            self.model,
            self.objective,
            [next(stream) for _ in range(recipe.accumulate)],
            self.optimizer,
            factor=factor(recipe.schedule, progress.step, steps=recipe.steps, warmup=recipe.warmup),
            clip_at=recipe.clip,
            device=self.device,
            precision=getattr(torch, recipe.precision),
            seed=(self.seed, progress.step),
        )
        progress.step += 1
        progress.tokens += result.tokens
        if isinstance(self.average, ExponentialAverage):
            self.average.update(self.model)
        return result

    def stream(self) -> Iterator[Any]:
        """Batches from where the run stands, epoch after epoch; workers make them ahead, in the same order."""
        progress = self.progress
        while True:
            epoch = EpochBatches(self.batches, progress.epoch)
            ahead = range(progress.index, len(epoch))
            loader = DataLoader(
                epoch, batch_size=None, sampler=ahead, num_workers=self.recipe.workers, worker_init_fn=_leave_signals
            )
            for batch in loader:
                progress.index += 1
                yield batch
            progress.epoch, progress.index = progress.epoch + 1, 0

    def _report_every(self) -> int:
        return max(1, min(50, self.recipe.evaluate_every // 5))

    def _report(self) -> None:
        progress = self.progress
        gradient = self.recent[-1][1].gradient
        self._settle()
        steps, tokens, seconds = self.clock.lap()
        loss = progress.loss / progress.labels if progress.labels else math.nan
        progress.loss, progress.labels = 0.0, 0
        progress.history.append({"step": progress.step, "loss": loss})
        self.events.emit(
            "step",
            step=progress.step,
            steps=self.recipe.steps,
            loss=loss,
            gradient=float(gradient),
            learning_rate=self.optimizer.rate,
            tokens_per_second=tokens / max(1e-9, seconds),
            seconds_per_step=seconds / steps,
            memory_gib=memory_in_use(self.device) / 2**30,
            epoch=progress.epoch,
            skipped=progress.skipped,
        )

    def _settle(self) -> None:
        """Add up what the latest steps gave. Reading it waits for the device, so it is done seldom."""
        if not self.recent:
            return
        progress = self.progress
        read = torch.stack([torch.stack([result.loss, result.gradient]) for _, result in self.recent]).tolist()
        for (place, result), (loss, gradient) in zip(self.recent, read, strict=True):
            if math.isfinite(loss) and math.isfinite(gradient):
                progress.loss, progress.labels = progress.loss + loss, progress.labels + result.tokens
                progress.skipped_in_a_row = 0
                continue
            progress.skipped, progress.skipped_in_a_row = progress.skipped + 1, progress.skipped_in_a_row + 1
            self.events.emit("note", step=place.step, text=f"skipped {place}: loss {loss:.3g}, gradient {gradient:.3g}")
            if progress.skipped_in_a_row == MOST_SKIPPED:
                raise NonFiniteError(
                    f"the loss or gradient was not finite {MOST_SKIPPED} times in a row, last at {place}: look at "
                    f"the data there, or lower training.learning_rate={self.recipe.learning_rate:g}"
                )
        self.recent = []

    def _evaluate(self, evaluate: Callable[[nn.Module], Evaluation], save_best: Callable[[nn.Module], object]) -> None:
        progress = self.progress
        if isinstance(self.average, LastAverage):
            self.average.update(self.model)
        with nullcontext() if self.average is None else self.average.in_place_of(self.model):
            self.model.eval()
            found = evaluate(self.model)
            better = found.score > progress.best
            progress.stale = 0 if better else progress.stale + 1
            if better:
                progress.best, progress.best_step = found.score, progress.step
                save_best(self.model)
        progress.history.append({"step": progress.step, **found.scores})
        self.events.emit(
            "evaluation",
            step=progress.step,
            steps=self.recipe.steps,
            scores=found.scores,
            best=better,
            sample=found.sample,
        )
        self.clock.restart()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that going on needs: tensors by name, and plain facts."""
        self._settle()
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state()}
        if self.average is not None:
            parts["average"] = self.average.state()
        tensors = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        return tensors, asdict(self.progress)

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Go back to where `state` was taken."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}}
        for full, tensor in tensors.items():
            part, _, name = full.partition(".")
            parts[part][name] = tensor
        self.model.load_state_dict(parts["model"])
        self.optimizer.restore(parts["optimizer"])
        if self.average is not None:
            self.average.restore(parts["average"])
        for name, value in facts.items():  # in place: whoever holds the progress sees it move
            setattr(self.progress, name, value)


def _leave_signals(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal, but stopping is up to the one that trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
