"""Training metrics: each step is counted once, whenever it is read."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import NonFiniteError
from heedful.training.metrics import MAX_SKIPPED_IN_A_ROW, TrainingMetrics
from heedful.training.reporting.events import Events
from heedful.training.run_progress import RunProgress
from heedful.training.step import StepResult

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def step(loss: float, tokens: int, device: str = "cpu") -> StepResult:
    return StepResult(torch.tensor(loss, device=device), tokens, torch.tensor(loss / 2, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_pending_steps_are_counted_in_the_next_window(device: str) -> None:
    metrics = TrainingMetrics(RunProgress(), Events())
    for loss in (2.0, 4.0, 60.0):
        metrics.add(step(loss, 2, device))
    first = metrics.close_window(pending=1)
    assert (first.loss, first.grad_norm, first.steps, first.tokens) == (1.5, 2.0, 3, 6)
    metrics.add(step(20.0, 2, device))
    second = metrics.close_window()
    assert (second.loss, second.grad_norm, second.steps, second.tokens) == (20.0, 10.0, 1, 2)


def test_the_loss_of_an_empty_window_is_nan() -> None:
    metrics = TrainingMetrics(RunProgress(), Events())
    metrics.add(step(2.0, 2))
    window = metrics.close_window(pending=2)
    assert window.loss != window.loss
    assert metrics.close_window().loss == 1.0


def test_consecutive_non_finite_steps_fail_with_the_last_position() -> None:
    progress = RunProgress()
    metrics = TrainingMetrics(progress, Events())
    for number in range(MAX_SKIPPED_IN_A_ROW):
        progress.step = number
        metrics.add(step(float("nan"), 2))
    with pytest.raises(NonFiniteError, match=f"step {MAX_SKIPPED_IN_A_ROW - 1} "):
        metrics.collect()
