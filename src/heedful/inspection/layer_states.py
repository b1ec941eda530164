"""The hidden states after each layer of a model, of any family, while it reads texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.taps import record, tap_names

LayerStates = dict[str, Tensor]
"""States, batch × tokens × width, by layer: "embeddings" (transformers), then "decoder.0", "decoder.1" …"""


def record_layers(model: Any, stack: str, run: Callable[[], Any]) -> LayerStates:
    """Run the model and return the states after each layer of its encoder or decoder, before any last norm."""
    taps = layer_taps(model, stack)
    if not taps:
        raise UsageError(f"a model of the family '{model.config.family}' has no layers to look at")
    with record(model, *(tap for names in taps.values() for tap in names)) as recorded:
        run()
    return {layer: torch.cat([recorded.over_steps(tap) for tap in names], -1) for layer, names in taps.items()}


def layer_taps(model: Any, stack: str) -> dict[str, tuple[str, ...]]:
    """The tap of each layer's states; a bidirectional recurrent layer has one for each direction."""
    taps = tap_names(model)
    names: dict[str, tuple[str, ...]] = {}
    if f"{stack}.0.attention.skip" in taps:
        names["embeddings"] = (f"{stack}.0.attention.skip",)
    layer = 0
    while outputs := _outputs(taps, f"{stack}.{layer}"):
        names[f"{stack}.{layer}"] = outputs
        layer += 1
    return names


def _outputs(taps: Sequence[str], layer: str) -> tuple[str, ...]:
    """The taps of a layer's states: of a block's last sub-layer, or of the two directions of a recurrent layer."""
    sublayers = [tap for sublayer in SUBLAYERS if (tap := f"{layer}.{sublayer}.residual") in taps]
    return tuple(sublayers[-1:]) or tuple(tap for direction in DIRECTIONS if (tap := f"{layer}.{direction}") in taps)


SUBLAYERS = ("attention", "cross", "feed_forward")
DIRECTIONS = ("hidden", "backward.hidden")
