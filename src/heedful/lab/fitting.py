"""Train a small model on a task of the lab, with the library's own trainer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from heedful.data.batching import Batches
from heedful.errors import UsageError, nearest
from heedful.lab.study import Trial
from heedful.models.build import build
from heedful.models.presets import make_config
from heedful.objectives.objective import Objective
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.trainer import Trainer

SMALL: dict[str, Any] = {
    "width": 64, "heads": 2, "layers": 1, "feed_forward": 128, "norm_order": "pre", "positions": "rotary",
    "tie_output": False, "dropout": 0.0,
}  # fmt: skip
"""The transformer of most studies. No dropout: most data are generated and never repeat."""
LOSS_SETTINGS = ("label_smoothing", "r_drop")
STEP_SETTINGS = (
    "accumulate", "betas", "clip", "compile", "cuda_graphs", "freeze", "interventions", "layer_decay", "learning_rate",
    "optimizer", "precision", "schedule", "warmup", "weight_decay",
)  # fmt: skip
"""The settings of `[training]` that `fit` uses, for the loss and the training step. The task defines the data."""


@runtime_checkable
class LabTask(Protocol):
    """A task that `fit` trains on: model settings, objective and batches."""

    @property
    def model_settings(self) -> dict[str, Any]:
        """Family, vocabulary and heads of a model for this task."""

    @property
    def objective(self) -> Objective:
        """The loss."""

    def batches(self, seed: int) -> Batches:
        """Training batches."""


@dataclass
class Fitted:
    """A trained model, and the history of its training."""

    model: Any
    losses: list[float] = field(default_factory=list)
    """The loss of every step, in nats per label."""
    grad_norms: list[float] = field(default_factory=list)
    tokens: int = 0
    """Labels the model was trained on."""
    seconds: float = 0.0
    """Training time; on a CPU the process's CPU time, which excludes other programs."""

    def final_loss(self, steps: int = 20) -> float:
        """The mean loss of the last steps."""
        last = self.losses[-steps:]
        return sum(last) / len(last)


def fit(task: LabTask, trial: Trial, *, steps: int, model: dict[str, Any] | None = None, **training: Any) -> Fitted:
    """Train a new model on the task, with the seed and on the device of the trial.

    `model` are settings of its configuration, `training` those of the recipe that a step or the loss uses.
    """
    torch.manual_seed(trial.seed)
    fitted = Fitted(new_model(task, **(model or {})))
    trainer = make_trainer(fitted.model, task, trial, steps=steps, **training)
    clock = time.process_time if trial.device.type == "cpu" else time.perf_counter
    start, results, stream = clock(), [], trainer.batch_stream()
    for _ in range(steps):
        results.append(trainer.step(stream))
    for result in results:  # read at the end: reading synchronizes with the device
        fitted.losses.append(float(result.loss) / max(1, result.tokens))
        fitted.grad_norms.append(float(result.grad_norm))
        fitted.tokens += result.tokens
    fitted.seconds = clock() - start
    fitted.model.eval()
    return fitted


def equal_size(task: LabTask, settings: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """The settings with the feed-forward width that gives the same number of parameters as `reference`."""
    target = parameters_of(task, reference)
    narrow, wide = (parameters_of(task, {**settings, "feed_forward": width}) for width in (1, 2))
    return {**settings, "feed_forward": max(1, 1 + round((target - narrow) / (wide - narrow)))}


def parameters_of(task: LabTask, settings: dict[str, Any]) -> int:
    """Number of parameters of a model for the task; allocates no weights."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in new_model(task, **settings).parameters())


def new_model(task: LabTask, **settings: Any) -> nn.Module:
    """A new model for the task; recurrent families take their own settings."""
    merged = {**task.model_settings, **settings}
    if not str(merged["family"]).startswith("recurrent"):
        merged = {**SMALL, **merged}
    model: nn.Module = build(make_config(merged))
    return model


def make_trainer(model: nn.Module, task: LabTask, trial: Trial, *, steps: int, **training: Any) -> Trainer:
    """The library's trainer with the lab's recipe; `training` overrides its settings."""
    objective = make_objective(task, training)
    recipe = {
        "learning_rate": 5e-3, "warmup": max(1, steps // 10), "label_smoothing": 0.0, "average": "none",
        "evaluate_every": steps, "weight_decay": 0.0, **training,
    }  # fmt: skip
    return Trainer(
        model,
        objective,
        task.batches(trial.seed),
        TrainingRecipe(steps=steps, **recipe),
        seed=trial.seed,
        device=trial.device,
        events=Events(),
    )


def make_objective(task: LabTask, training: dict[str, Any]) -> Objective:
    """The task's loss with the settings of `training` for it; UsageError for a setting that would have no effect."""
    objective = task.objective
    of_loss = [name for name in LOSS_SETTINGS if hasattr(objective, name)]
    for name in training:
        if name not in STEP_SETTINGS and name not in of_loss:
            raise UsageError(f"fit does not use '{name}' with this task; {nearest(name, (*STEP_SETTINGS, *of_loss))}")
    chosen: Any = {name: training[name] for name in of_loss if name in training}
    return replace(objective, **chosen) if is_dataclass(objective) and chosen else objective
