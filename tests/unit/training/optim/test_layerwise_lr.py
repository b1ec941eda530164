"""Layers that learn at rates of their own, or not at all."""

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


def stepped(model: Any, how: TrainingRecipe) -> dict[str, float]:
    """How far each weight moved in one step with gradients of one size."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    learner = Optimizer(model, how)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.ones_like(weight)
    learner.step(1.0, torch.tensor(0.0))
    return {name: float((weight.detach() - before[name]).abs().max()) for name, weight in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_layers_stay_to_the_bit_and_the_others_move(optimizer: str) -> None:
    moved = stepped(encoder(), recipe(freeze=2, optimizer=optimizer))
    frozen = ("table.", "embedding.", "encoder.blocks.0.", "encoder.blocks.1.")
    for name, distance in moved.items():
        assert (distance == 0.0) == name.startswith(frozen), name


def test_the_rate_of_a_layer_falls_by_the_decay_for_each_layer_above_it() -> None:
    rates = learning_rate_factors(encoder(), recipe(layer_decay=0.5))
    assert rates["heads.masked_token.dense.weight"] == 1.0
    assert rates["encoder.norm.weight"] == 1.0
    assert [rates[f"encoder.blocks.{block}.feed_forward.inward.weight"] for block in range(3)] == [0.125, 0.25, 0.5]
    assert rates["table.weight"] == 0.0625
    model = encoder()
    moved = stepped(model, TrainingRecipe(steps=9, weight_decay=0.0, layer_decay=0.5, learning_rate=0.01))
    for name, distance in moved.items():
        assert distance == pytest.approx(0.01 * rates[name], rel=1e-3), name


def test_without_either_all_learn_alike() -> None:
    assert set(learning_rate_factors(encoder(), recipe()).values()) == {1.0}


def test_what_cannot_be_done_is_said() -> None:
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
    with pytest.raises(UsageError, match="freeze and shard"):
        make_recipe({**settings, "training": {"steps": 1, "freeze": 1, "shard": True}})
