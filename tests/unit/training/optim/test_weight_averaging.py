"""Averaged weights are what the formulas say, stand in for a while, and survive being stored."""

from __future__ import annotations

import torch
from torch import nn

from heedful.training.optim.weight_averaging import ExponentialMovingAverage, CheckpointAverage


def _walk(model: nn.Module, steps: int) -> list[torch.Tensor]:
    seen = []
    for _ in range(steps):
        for weight in model.parameters():
            weight.data += torch.randn_like(weight)
        seen.append(next(model.parameters()).detach().clone())
    return seen


def test_exponential_average_follows_its_recurrence() -> None:
    model = nn.Linear(3, 2)
    average = ExponentialMovingAverage(model, decay=0.9)
    expected = model.weight.detach().clone()
    for step in range(50):
        _walk(model, 1)
        average.update(model)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.weights[0], expected)


def test_last_average_is_the_mean_of_the_last_k() -> None:
    model = nn.Linear(3, 2)
    average = CheckpointAverage(model, last=3)
    seen = []
    for _ in range(5):
        seen += _walk(model, 1)
        average.update(model)
    torch.testing.assert_close(average.weights[0], torch.stack(seen[-3:]).mean(0))


def test_the_average_stands_in_and_the_models_own_weights_come_back() -> None:
    model = nn.Linear(3, 2)
    average = ExponentialMovingAverage(model, decay=0.5)
    _walk(model, 3)
    own = model.weight.detach().clone()
    with average.swapped_into(model):
        torch.testing.assert_close(model.weight.detach(), average.weights[0])
    assert torch.equal(model.weight, own)


def test_a_restored_average_goes_on_as_if_never_stored() -> None:
    for make in (lambda model: ExponentialMovingAverage(model, 0.9), lambda model: CheckpointAverage(model, 3)):
        model = nn.Linear(3, 2)
        first = make(model)
        for _ in range(4):
            _walk(model, 1)
            first.update(model)
        second = make(model)
        second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
        _walk(model, 1)
        first.update(model)
        second.update(model)
        assert all(torch.equal(a, b) for a, b in zip(first.weights, second.weights, strict=True))
