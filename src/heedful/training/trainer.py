"""The training loop: one for every objective and every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from heedful.data.batching import Batches
from heedful.device import memory_in_use
from heedful.errors import UsageError
from heedful.layers.attention import cudnn_attention
from heedful.models.transformer import Transformer
from heedful.objectives.objective import CompiledObjective, Objective
from heedful.training.checkpoint.sharded_tensors import SliceableTensor
from heedful.training.cuda_graph_step import CudaGraphForwardBackward
from heedful.training.distributed.fsdp import shard_like, shard_model, unsharded_model
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.metrics import TrainingMetrics
from heedful.training.optim.optimizer import Optimizer
from heedful.training.optim.schedules import learning_rate_factor
from heedful.training.optim.weight_averaging import ExponentialMovingAverage, CheckpointAverage
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.run_progress import RunProgress, is_finished
from heedful.training.signals import ignore_stop_signals
from heedful.training.step import ForwardBackward, StepResult, train_step

PENDING_STEPS = 2
"""Steps whose loss a report leaves to the next: a GPU has them to do while the host reads the others and goes on."""


class EpochDataset(Dataset[Any]):
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
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        if recipe.optimizer == "row_adagrad" and process_group.size > 1:
            raise UsageError("training.optimizer = 'row_adagrad' needs a single process: run without torchrun")
        if recipe.shard and process_group.size > 1:
            shard_model(model, process_group, device)
        self.model, self.batches, self.recipe, self.process_group = model.to(device), batches, recipe, process_group
        # A recipe made on a GPU must train elsewhere, too: what is recorded there is simply done here. So are the steps
        # of recurrent models, whose library cannot be recorded.
        recordable = device.type == "cuda" and isinstance(model, Transformer)
        way = CudaGraphForwardBackward if recipe.cuda_graphs and recordable else ForwardBackward
        learned = CompiledObjective(objective) if recipe.compile else objective
        self.gradients = way(model, learned, device, getattr(torch, recipe.precision), process_group)
        self.seed, self.device, self.events = seed, device, events
        self.optimizer = Optimizer(model, recipe)
        self.average: ExponentialMovingAverage | CheckpointAverage | None = None
        if recipe.average == "exponential":
            self.average = ExponentialMovingAverage(model, recipe.average_decay)
        elif recipe.average == "last":
            self.average = CheckpointAverage(model, recipe.average_last)
        self.progress = RunProgress()
        self.tally = TrainingMetrics(self.progress, events)

    def fit(
        self,
        evaluate: Callable[[nn.Module], Evaluation],
        save_best: Callable[[nn.Module], object],
        after_step: Callable[[], object] = lambda: None,
    ) -> RunProgress:
        """Step until the recipe's end or until no evaluation gets better; the best model is saved on the way."""
        recipe, progress = self.recipe, self.progress
        stream = self.batch_stream()
        self.tally.restart_clock()
        while not self.finished:
            self.tally.add(self.step(stream))
            evaluating = progress.step % recipe.evaluate_every == 0 or progress.step == recipe.steps
            if evaluating or progress.step % self._report_every() == 0:
                self._report(but=0 if evaluating else PENDING_STEPS)
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
        with cudnn_attention(self.batches.fixed_shape):
            result = train_step(
                self.gradients,
                [next(stream) for _ in range(recipe.accumulate)],
                self.optimizer,
                lr_factor=learning_rate_factor(recipe.schedule, progress.step, steps=recipe.steps, warmup=recipe.warmup),
                max_grad_norm=recipe.clip,
                seed=(self.seed, progress.step),
            )
        progress.step += 1
        progress.tokens += result.tokens
        if isinstance(self.average, ExponentialMovingAverage):
            self.average.update(self.model)
        return result

    def batch_stream(self) -> Iterator[Any]:
        """Batches from where the run stands, epoch after epoch; workers make them ahead, in the same order."""
        progress = self.progress
        while True:
            epoch = EpochDataset(self.batches, progress.epoch)
            ahead = range(progress.batch_index, len(epoch))
            loader = DataLoader(
                epoch, batch_size=None, sampler=ahead, num_workers=self.recipe.workers, worker_init_fn=ignore_stop_signals
            )
            for batch in loader:
                progress.batch_index += 1
                yield batch
            progress.epoch, progress.batch_index = progress.epoch + 1, 0

    def _report_every(self) -> int:
        return max(1, min(50, self.recipe.evaluate_every // 5))

    def _report(self, *, but: int) -> None:
        """Reading the loss waits for the device: done seldom."""
        progress, window = self.progress, self.tally.close_window(pending=but if self.device.type == "cuda" else 0)
        progress.history.append({"step": progress.step, "loss": window.loss})
        self.events.emit(
            "step",
            step=progress.step,
            steps=self.recipe.steps,
            loss=window.loss,
            gradient=window.grad_norm,
            learning_rate=self.optimizer.learning_rate,
            tokens_per_second=window.tokens / window.seconds,
            unit=self.batches.unit,
            seconds_per_step=window.seconds / window.steps,
            memory_gib=memory_in_use(self.device) / 2**30,
            epoch=progress.epoch,
            skipped=progress.skipped,
        )

    def _evaluate(self, evaluate: Callable[[nn.Module], Evaluation], save_best: Callable[[nn.Module], object]) -> None:
        progress = self.progress
        if isinstance(self.average, CheckpointAverage):
            self.average.update(self.model)
        with self.averaged_weights():
            model = unsharded_model(self.model.eval(), self.process_group)
            found = self.process_group.broadcast_from_rank_zero(lambda: evaluate(model))
            better = found.score >= progress.best_score  # of equals the later: a BLEU of 0 may hide a falling loss
            progress.evaluations_since_best = 0 if found.score > progress.best_score else progress.evaluations_since_best + 1
            if better:
                progress.best_score, progress.best_step = found.score, progress.step
                self.process_group.run_on_rank_zero(lambda: save_best(model))
        progress.history.append({"step": progress.step, **found.scores})
        self.events.emit(
            "evaluation",
            step=progress.step,
            steps=self.recipe.steps,
            scores=found.scores,
            best=better,
            sample=found.sample,
        )
        self.tally.restart_clock()

    def averaged_weights(self) -> AbstractContextManager[None]:
        """The model with averaged weights, if weights are averaged."""
        return nullcontext() if self.average is None else self.average.swapped_into(self.model)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that going on needs: tensors by name, of which some may be cut, and plain facts."""
        self.tally.collect()
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        tensors = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        return tensors, asdict(self.progress)

    def restore(self, tensors: Mapping[str, SliceableTensor], facts: dict[str, Any]) -> None:
        """Go back to where `state` was taken, by however many processes."""
        parts: dict[str, dict[str, SliceableTensor]] = {"model": {}, "optimizer": {}, "average": {}}
        for full, tensor in tensors.items():
            part, _, name = full.partition(".")
            parts[part][name] = tensor
        own = self.model.state_dict()
        self.model.load_state_dict({name: shard_like(weight, own[name]) for name, weight in parts["model"].items()})
        self.optimizer.load_state_dict(parts["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        for name, value in facts.items():  # in place: whoever holds the progress sees it move
            setattr(self.progress, name, value)
