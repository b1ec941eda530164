"""Layer-wise learning rates and frozen layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.training.optim.layerwise_lr import learning_rate_factors
from heedful.training.optim.optimizer import Optimizer
from heedful.training.recipe import TrainingRecipe, make_recipe


def encoder(**changes: Any) -> Any:
    return heedful.build("laptop-reader", vocabulary=20, width=16, heads=2, layers=3, **changes)


def recipe(**settings: Any) -> TrainingRecipe:
    return TrainingRecipe(steps=9, weight_decay=0.1, **settings)


def step_sizes(model: Any, recipe: TrainingRecipe) -> dict[str, float]:
    """The largest change of each weight in one step with equal gradients."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = Optimizer(model, recipe)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.ones_like(weight)
    optimizer.step(1.0, torch.tensor(0.0))
    return {name: float((weight.detach() - before[name]).abs().max()) for name, weight in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_layers_do_not_change_and_the_others_do(optimizer: str) -> None:
    changes = step_sizes(encoder(), recipe(freeze=2, optimizer=optimizer))
    frozen = ("table.", "embedding.", "encoder.blocks.0.", "encoder.blocks.1.")
    for name, change in changes.items():
        assert (change == 0.0) == name.startswith(frozen), name


def test_learning_rates_decay_from_the_top_layer_down() -> None:
    factors = learning_rate_factors(encoder(), recipe(layer_decay=0.5))
    assert factors["heads.masked_token.dense.weight"] == 1.0
    assert factors["encoder.norm.weight"] == 1.0
    assert [factors[f"encoder.blocks.{block}.feed_forward.inward.weight"] for block in range(3)] == [0.125, 0.25, 0.5]
    assert factors["table.weight"] == 0.0625
    model = encoder()
    changes = step_sizes(model, TrainingRecipe(steps=9, weight_decay=0.0, layer_decay=0.5, learning_rate=0.01))
    for name, change in changes.items():
        assert change == pytest.approx(0.01 * factors[name], rel=1e-3), name


def test_without_settings_all_learning_rates_are_equal() -> None:
    assert set(learning_rate_factors(encoder(), recipe()).values()) == {1.0}


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match=r"training\.freeze=4: the model has 3 layers"):
        Optimizer(encoder(), recipe(freeze=4))
    translator = heedful.build("laptop-translator", vocabulary=20, width=16, heads=2, layers=1)
    with pytest.raises(UsageError, match="need an encoder or a decoder, got family 'encoder_decoder'"):
        Optimizer(translator, recipe(layer_decay=0.9))
    settings = {
        "task": "generate",
        "data": {"train": ["a"]},
        "tokenizer": {"vocabulary": 300},
        "model": {"family": "decoder"},
    }
    with pytest.raises(UsageError, match="shard = true cannot be combined with freeze"):
        make_recipe({**settings, "training": {"steps": 1, "freeze": 1, "shard": True}})
