"""Weight averages follow their formulas, replace weights temporarily, and survive a checkpoint."""

from __future__ import annotations

import torch
from torch import nn

from heedful.training.optim.weight_averaging import CheckpointAverage, ExponentialMovingAverage


def _random_updates(model: nn.Module, steps: int) -> list[torch.Tensor]:
    history = []
    for _ in range(steps):
        for weight in model.parameters():
            weight.data += torch.randn_like(weight)
        history.append(next(model.parameters()).detach().clone())
    return history


def test_exponential_average_follows_its_recurrence() -> None:
    model = nn.Linear(3, 2)
    average = ExponentialMovingAverage(model, decay=0.9)
    expected = model.weight.detach().clone()
    for step in range(50):
        _random_updates(model, 1)
        average.update(model)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.weights[0], expected)


def test_checkpoint_average_is_the_mean_of_the_last_k() -> None:
    model = nn.Linear(3, 2)
    average = CheckpointAverage(model, last=3)
    history = []
    for _ in range(5):
        history += _random_updates(model, 1)
        average.update(model)
    torch.testing.assert_close(average.weights[0], torch.stack(history[-3:]).mean(0))


def test_averaged_weights_are_swapped_in_and_out() -> None:
    model = nn.Linear(3, 2)
    average = ExponentialMovingAverage(model, decay=0.5)
    _random_updates(model, 3)
    trained = model.weight.detach().clone()
    with average.swapped_into(model):
        torch.testing.assert_close(model.weight.detach(), average.weights[0])
    assert torch.equal(model.weight, trained)


def test_a_restored_average_continues_exactly() -> None:
    for make in (lambda model: ExponentialMovingAverage(model, 0.9), lambda model: CheckpointAverage(model, 3)):
        model = nn.Linear(3, 2)
        first = make(model)
        for _ in range(4):
            _random_updates(model, 1)
            first.update(model)
        second = make(model)
        second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
        _random_updates(model, 1)
        first.update(model)
        second.update(model)
        assert all(torch.equal(a, b) for a, b in zip(first.weights, second.weights, strict=True))
