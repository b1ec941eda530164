"""Layer-wise learning rates: frozen layers, and rates that decay from the top layer down.

    rate of layer l = rate · decay^(L + 1 − l)        Howard & Ruder 2018, 3.2; Clark 2020 · T5

Token and position embeddings are layer 0, blocks are layers 1 to L, heads and the final norm are layer L + 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from heedful.errors import UsageError
from heedful.training.recipe import TrainingRecipe

BLOCK = re.compile(r"(?:encoder|decoder)\.blocks\.(\d+)\.")
BOTTOM = ("table.", "embedding.")


def learning_rate_factors(model: nn.Module, recipe: TrainingRecipe) -> dict[str, float]:
    """The factor of the learning rate for each trainable weight, by name; the others are frozen."""
    weights = dict(model.named_parameters())
    if not recipe.freeze and recipe.layer_decay == 1.0:
        return dict.fromkeys(weights, 1.0)
    layers = layer_indices(weights)
    top = max(layers.values())
    check_layerwise_settings(model, recipe, top - 1)
    factors: dict[str, float] = {}
    for name, weight in weights.items():
        frozen = 0 < recipe.freeze >= layers[name]
        weight.requires_grad_(not frozen)
        if not frozen:
            factors[name] = recipe.layer_decay ** (top - layers[name])
    return factors


def layer_indices(names: Iterable[str]) -> dict[str, int]:
    """The layer that each weight belongs to."""
    blocks = {name: int(match[1]) + 1 for name in names if (match := BLOCK.match(name))}
    top = 1 + max(blocks.values(), default=0)
    return {name: 0 if name.startswith(BOTTOM) else blocks.get(name, top) for name in names}


def check_layerwise_settings(model: nn.Module, recipe: TrainingRecipe, layers: int) -> None:
    """Raise an error unless the model is a single stack with at least as many layers as are frozen."""
    family = str(getattr(model.config, "family", ""))
    if family not in ("encoder", "decoder"):
        raise UsageError(f"training.freeze and layer_decay need an encoder or a decoder, got family '{family}'")
    if recipe.freeze > layers:
        raise UsageError(f"training.freeze={recipe.freeze}: the model has {layers} layers")
