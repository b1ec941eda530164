"""The training loop: one for every objective and every family."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from heedful.data.batches import Batches
from heedful.objectives.objective import Objective
from heedful.training.averaging import ExponentialAverage, LastAverage
from heedful.training.events import Events
from heedful.training.machine import memory_in_use
from heedful.training.optimizers import Optimizer
from heedful.training.recipe import TrainingRecipe
from heedful.training.schedules import factor
from heedful.training.step import StepResult, train_step


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
    history: list[dict[str, int | float]] = field(default_factory=list)


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

    def run(self, evaluate: Callable[[nn.Module], Evaluation], save_best: Callable[[nn.Module], object]) -> Progress:
        """Step until the recipe's end or until no evaluation gets better; the best model is saved on the way."""
        recipe, progress = self.recipe, self.progress
        recent: list[StepResult] = []
        stream, since = self.stream(), time.monotonic()
        while progress.step < recipe.steps:
            recent.append(self.step(stream))
            if progress.step % self._report_every() == 0:
                since = self._report(recent, since)
                recent = []
            if progress.step % recipe.evaluate_every == 0 or progress.step == recipe.steps:
                self._evaluate(evaluate, save_best)
                since = time.monotonic()
                recent = []
                if recipe.patience and progress.stale >= recipe.patience:
                    break
        return progress

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
            for batch in DataLoader(epoch, batch_size=None, sampler=ahead, num_workers=self.recipe.workers):
                progress.index += 1
                yield batch
            progress.epoch, progress.index = progress.epoch + 1, 0

    def _report_every(self) -> int:
        return max(1, min(50, self.recipe.evaluate_every // 5))

    def _report(self, recent: list[StepResult], since: float) -> float:
        """Reading the loss waits for the device: done seldom."""
        tokens = sum(result.tokens for result in recent)
        loss = float(torch.stack([result.loss for result in recent]).sum()) / max(1, tokens)
        now = time.monotonic()
        self.progress.history.append({"step": self.progress.step, "loss": loss})
        self.events.emit(
            "step",
            step=self.progress.step,
            steps=self.recipe.steps,
            loss=loss,
            gradient=float(recent[-1].gradient),
            learning_rate=self.optimizer.rate,
            tokens_per_second=tokens / max(1e-9, now - since),
            seconds_per_step=(now - since) / len(recent),
            memory_gib=memory_in_use(self.device) / 2**30,
            epoch=self.progress.epoch,
        )
        return now

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
