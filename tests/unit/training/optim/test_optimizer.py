"""Skipped steps, gradient scaling and the state of optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heedful
from heedful.training.optim.optimizer import Optimizer
from heedful.training.recipe import TrainingRecipe


def tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    both = {**model.state_dict(), **optimizer.state_dict()}
    return {name: tensor.detach().clone() for name, tensor in both.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_skipped_step_leaves_weights_and_state_bit_for_bit(optimizer: str) -> None:
    model = heedful.build("laptop-writer", vocabulary=20, width=16, heads=2, layers=1)
    learner = Optimizer(model, TrainingRecipe(steps=9, optimizer=optimizer, weight_decay=0.1))
    finite, not_finite = torch.tensor(0.0), torch.tensor(1.0)
    for _ in range(2):
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        learner.step(1.0, finite)
    before = tensors(model, learner)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, float("nan"))
    learner.step(1.0, not_finite)
    after = tensors(model, learner)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    learner.step(1.0, finite)
    assert all(tensor.isfinite().all() for tensor in tensors(model, learner).values())


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "row_adagrad"])
def test_scaling_gradients_within_a_step_equals_scaling_them_before(optimizer: str) -> None:
    def train(*, beforehand: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        small = nn.Embedding(7, 4)
        model = small if optimizer == "row_adagrad" else heedful.build("laptop-writer", vocabulary=9, width=8, layers=1)
        learner = Optimizer(model, TrainingRecipe(steps=9, optimizer=optimizer))
        for scale in (1.0, 4.0, 1.0):
            for weight in model.parameters():
                weight.grad = torch.randn_like(weight) / (scale if beforehand else 1.0)
            learner.step(1.0, torch.tensor(0.0), None if beforehand else torch.tensor(scale))
        return tensors(model, learner)

    beforehand, within = train(beforehand=True), train(beforehand=False)
    for name, tensor in beforehand.items():
        torch.testing.assert_close(within[name], tensor)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_state_dict_is_named_after_the_weights_and_can_be_loaded(optimizer: str) -> None:
    model = heedful.build("laptop-writer", vocabulary=20, width=16, heads=2, layers=1)
    recipe = TrainingRecipe(steps=9, optimizer=optimizer)
    first = Optimizer(model, recipe)
    assert first.state_dict() == {}
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    first.step(1.0, torch.tensor(0.0))
    names = dict(model.named_parameters())
    assert {name.rpartition(".")[0] for name in first.state_dict()} == names.keys()
    second = Optimizer(model, recipe)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())
