"""What steps gave is counted once, whenever it is read."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import NonFiniteError
from heedful.training.metrics import MAX_SKIPPED_IN_A_ROW, TrainingMetrics
from heedful.training.reporting.events import Events
from heedful.training.run_progress import RunProgress
from heedful.training.step import StepResult

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def step(loss: float, tokens: int, device: str = "cpu") -> StepResult:
    return StepResult(torch.tensor(loss, device=device), tokens, torch.tensor(loss / 2, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_what_one_report_leaves_the_next_has(device: str) -> None:
    tally = TrainingMetrics(RunProgress(), Events())
    for loss in (2.0, 4.0, 60.0):
        tally.add(step(loss, 2, device))
    first = tally.close_window(pending=1)
    assert (first.loss, first.grad_norm, first.steps, first.tokens) == (1.5, 2.0, 3, 6)
    tally.add(step(20.0, 2, device))
    second = tally.close_window()
    assert (second.loss, second.grad_norm, second.steps, second.tokens) == (20.0, 10.0, 1, 2)


def test_a_report_on_nothing_is_not_a_number_and_no_error() -> None:
    tally = TrainingMetrics(RunProgress(), Events())
    tally.add(step(2.0, 2))
    window = tally.close_window(pending=2)
    assert window.loss != window.loss
    assert tally.close_window().loss == 1.0


def test_bad_steps_in_a_row_end_the_run_and_name_the_last() -> None:
    progress = RunProgress()
    tally = TrainingMetrics(progress, Events())
    for number in range(MAX_SKIPPED_IN_A_ROW):
        progress.step = number
        tally.add(step(float("nan"), 2))
    with pytest.raises(NonFiniteError, match=f"step {MAX_SKIPPED_IN_A_ROW - 1} "):
        tally.collect()
