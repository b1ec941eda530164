"""How fast each layer of a model learns: not at all, more slowly than the one above, or like all others.

    rate of layer l = rate · decay^(L + 1 − l)        Howard & Ruder 2018, 3.2; Clark 2020 · T5

Token vectors and positions are layer 0, blocks are layers 1 to L, heads and the last norm are layer L + 1.
"""

from __future__ import annotations

import re

from torch import nn

from heedful.errors import UsageError
from heedful.training.recipe import TrainingRecipe

BLOCK = re.compile(r"(?:encoder|decoder)\.blocks\.(\d+)\.")
BOTTOM = ("table.", "embedding.")


def learning_rate_factors(model: nn.Module, recipe: TrainingRecipe) -> dict[str, float]:
    """The share of the learning rate for each weight that learns, by name; the others are frozen."""
    weights = dict(model.named_parameters())
    if not recipe.freeze and recipe.layer_decay == 1.0:
        return dict.fromkeys(weights, 1.0)
    layers = {name: layer_index(name) for name in weights}
    top = 1 + max(layer for layer in layers.values() if layer is not None)
    check(model, recipe, top - 1)
    rates: dict[str, float] = {}
    for name, weight in weights.items():
        layer = layers[name]
        frozen = recipe.freeze > 0 and layer is not None and layer <= recipe.freeze
        weight.requires_grad_(not frozen)
        if not frozen:
            rates[name] = recipe.layer_decay ** (0 if layer is None else top - layer)
    return rates


def layer_index(name: str) -> int | None:
    """The layer a weight belongs to; None: above all of them."""
    if name.startswith(BOTTOM):
        return 0
    found = BLOCK.match(name)
    return int(found.group(1)) + 1 if found else None


def check(model: nn.Module, recipe: TrainingRecipe, layers: int) -> None:
    """Layers must lie one above the other, and there must be as many as are to be frozen."""
    family = str(getattr(model.config, "family", ""))
    if family not in ("encoder", "decoder"):
        raise UsageError(f"training.freeze and layer_decay are for encoders and decoders, not for family '{family}'")
    if recipe.freeze > layers:
        raise UsageError(f"training.freeze={recipe.freeze}: the model has {layers} layers")
