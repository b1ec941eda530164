"""The training loop, shared by all objectives and model families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from heedful.data.batching import Batches
from heedful.device import cudnn_attention, memory_in_use
from heedful.errors import UsageError
from heedful.interventions.resolve import PlainModel, resolve
from heedful.models.transformer import Transformer
from heedful.objectives.objective import CompiledObjective, Objective
from heedful.training.checkpoint.sharded_tensors import SliceableTensor
from heedful.training.cuda_graph_step import CudaGraphForwardBackward
from heedful.training.distributed.fsdp import shard_like, shard_model, unsharded_model
from heedful.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from heedful.training.failures import check_shared_memory
from heedful.training.metrics import TrainingMetrics
from heedful.training.optim.optimizer import Optimizer
from heedful.training.optim.weight_averaging import CheckpointAverage, ExponentialMovingAverage
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.run_progress import RunProgress, is_finished
from heedful.training.signals import ignore_stop_signals
from heedful.training.step import ForwardBackward, StepResult, train_step

PENDING_STEPS = 2
"""Newest steps left out of a report on a GPU: they are still running while the host reads the others."""


class EpochDataset(Dataset[Any]):
    """The batches of one epoch; the i-th depends on i alone, whichever worker builds it."""

    def __init__(self, batches: Batches, epoch: int) -> None:
        self.batches, self.epoch = batches, epoch
        self.plan = batches.plan(epoch)

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Any:
        return self.batches.batch(self.epoch, self.plan[index])


@dataclass(frozen=True)
class Evaluation:
    """Validation scores; `score` selects the best model (higher is better)."""

    score: float
    scores: dict[str, float]
    sample: tuple[str, ...] = ()
    attention: dict[str, Any] | None = None
    """Cross-attention of one validation pair, for the animation of how it develops."""


class Trainer:
    """Trains a model: batches, steps, evaluations and the state that checkpoints store."""

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
        # A recipe with cuda_graphs must also train on other devices, and recurrent models cannot be captured.
        capturable = device.type == "cuda" and isinstance(model, Transformer)
        forward_backward = CudaGraphForwardBackward if recipe.cuda_graphs and capturable else ForwardBackward
        objective = CompiledObjective(objective) if recipe.compile else objective
        edits = resolve(PlainModel(model), recipe.interventions)
        self.forward_backward = forward_backward(
            model, objective, device, getattr(torch, recipe.precision), process_group, edits
        )
        self.seed, self.device, self.events = seed, device, events
        self.optimizer = Optimizer(model, recipe)
        self.average: ExponentialMovingAverage | CheckpointAverage | None = None
        if recipe.average == "exponential":
            self.average = ExponentialMovingAverage(model, recipe.average_decay)
        elif recipe.average == "last":
            self.average = CheckpointAverage(model, recipe.average_last)
        self.progress = RunProgress()
        self.metrics = TrainingMetrics(self.progress, events)

    def fit(
        self,
        evaluate: Callable[[nn.Module], Evaluation],
        save_best: Callable[[nn.Module], object],
        after_step: Callable[[], object] = lambda: None,
    ) -> RunProgress:
        """Train until the last step or early stopping, saving the best model at evaluations."""
        recipe, progress = self.recipe, self.progress
        stream = self.batch_stream()
        self.metrics.restart_clock()
        first = progress.step + 1
        while not self.finished:
            self.metrics.add(self.step(stream))
            if progress.step == first and self._report_every() > 1:  # a first step also warms up
                self.metrics.restart_clock()
            evaluating = progress.step % recipe.evaluate_every == 0 or progress.step == recipe.steps
            if evaluating or progress.step % self._report_every() == 0:
                self._report(pending=0 if evaluating else PENDING_STEPS)
            if evaluating:
                if isinstance(self.average, CheckpointAverage):
                    self.average.update(self.model)
                self._evaluate(evaluate, save_best)
            after_step()
        return progress

    def replace_best(
        self, evaluate: Callable[[nn.Module], Evaluation], save_best: Callable[[nn.Module], object]
    ) -> None:
        """Save the current weights as the best model, whose file is lost; early stopping is not reset."""
        since_best = self.progress.evaluations_since_best
        self.progress.best_score = -float("inf")
        self._evaluate(evaluate, save_best)
        self.progress.evaluations_since_best = since_best

    @property
    def finished(self) -> bool:
        return is_finished(self.recipe, self.progress)

    def step(self, stream: Iterator[Any]) -> StepResult:
        """One optimizer step on the next batches of the stream."""
        progress = self.progress
        batches = [next(stream) for _ in range(self.recipe.accumulate)]
        with cudnn_attention(self.batches.fixed_shape):
            result = train_step(self.forward_backward, batches, self.optimizer, step=progress.step, seed=self.seed)
        progress.step += 1
        progress.tokens += result.tokens
        if isinstance(self.average, ExponentialMovingAverage):
            self.average.update(self.model)
        return result

    def batch_stream(self) -> Iterator[Any]:
        """Batches from the current position on, epoch after epoch; DataLoader workers keep the order."""
        progress = self.progress
        if self.recipe.workers:
            check_shared_memory(self.recipe.workers)
        while True:
            epoch = EpochDataset(self.batches, progress.epoch)
            remaining = range(progress.batch_index, len(epoch))
            loader = DataLoader(
                epoch,
                batch_size=None,
                sampler=remaining,
                num_workers=self.recipe.workers,
                worker_init_fn=ignore_stop_signals,
            )
            for batch in loader:
                progress.batch_index += 1
                yield batch
            progress.epoch, progress.batch_index = progress.epoch + 1, 0

    def _report_every(self) -> int:
        return max(1, min(50, self.recipe.evaluate_every // 5))

    def _report(self, *, pending: int) -> None:
        """Emit the metrics since the last report. Reading the loss waits for the device, so this is done rarely."""
        progress = self.progress
        window = self.metrics.close_window(pending=pending if self.device.type == "cuda" else 0)
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
            seconds_left=(self.recipe.steps - progress.step) * self.metrics.seconds_per_step,
            memory_gib=memory_in_use(self.device) / 2**30,
            epoch=progress.epoch,
            skipped=progress.skipped,
        )

    def _evaluate(self, evaluate: Callable[[nn.Module], Evaluation], save_best: Callable[[nn.Module], object]) -> None:
        progress = self.progress
        with self.averaged_weights():
            model = unsharded_model(self.model.eval(), self.process_group)
            result = self.process_group.broadcast_from_rank_zero(lambda: evaluate(model))
            better = result.score >= progress.best_score  # ties: the later one, as a BLEU of 0 may hide a falling loss
            progress.evaluations_since_best = (
                0 if result.score > progress.best_score else progress.evaluations_since_best + 1
            )
            if better:
                progress.best_score, progress.best_step = result.score, progress.step
                self.process_group.run_on_rank_zero(lambda: save_best(model))
        progress.history.append({"step": progress.step, **result.scores})
        self.events.emit(
            "evaluation",
            step=progress.step,
            steps=self.recipe.steps,
            scores=result.scores,
            best=better,
            sample=result.sample,
            **({} if result.attention is None else {"attention": result.attention}),
        )
        self.metrics.restart_clock()

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Swap the averaged weights in, if weights are averaged."""
        return nullcontext() if self.average is None else self.average.swapped_into(self.model)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state a checkpoint stores: named tensors, some of them sharded, and the progress as JSON."""
        self.metrics.collect()
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        tensors = {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        return tensors, asdict(self.progress)

    def restore(self, tensors: Mapping[str, SliceableTensor], progress: dict[str, Any]) -> None:
        """Restore what `state` returned, possibly with another number of ranks."""

        def part(prefix: str) -> dict[str, SliceableTensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        current = self.model.state_dict()
        self.model.load_state_dict({name: shard_like(weight, current[name]) for name, weight in part("model.").items()})
        self.optimizer.load_state_dict(part("optimizer."))
        if self.average is not None:
            self.average.load_state_dict(part("average."))
        for name, value in progress.items():  # in place: the metrics hold the same object
            setattr(self.progress, name, value)
