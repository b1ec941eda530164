"""Rewrite a model's weights for a layout with fewer settings, without changing any logit.

A sinusoid becomes a position table, a missing bias a bias of 0; interleaved sines and cosines are permuted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.layers.positions import SinusoidalPositions
from heedful.models.build import build
from heedful.models.model_config import TransformerConfig


class ModelWeights(NamedTuple):
    """A model's configuration and weights."""

    config: TransformerConfig
    weights: dict[str, Tensor]


def rewrite_for_layout(model: ModelWeights, target: Mapping[str, Any], variable: Container[str]) -> ModelWeights:
    """Rewrite a model as close to the `target` settings as possible; a layout can vary those in `variable`."""
    if model.config.position_combine != "add":
        return model  # no layout has concatenated positions, and the rewriting below is for added ones
    # Dropout does not change what a trained model computes.
    config = model.config.with_changes(**{name: target[name] for name in ("dropout", "attention_dropout")})
    model = ModelWeights(config, dict(model.weights))
    if config.positions in ("sinusoidal", "none") and target["positions"] == "learned":
        model = _positions_to_table(model)
    layouts = config.position_layout, target["position_layout"]
    if config.positions == "sinusoidal" and layouts == ("interleaved", "halves"):
        model = _deinterleave(model)
    if config.embedding_scale and not target["embedding_scale"]:
        model = _fold_embedding_scale(model, may_untie="tie_output" in variable)
    if target["bias"] and not config.bias:
        model = _add_zero_weights(model, bias=True)
    if "segments" in variable and not config.segments:
        model = _add_zero_weights(model, segments=1)
    return model


def sinusoid_table(config: TransformerConfig, rows: int) -> Tensor:
    """Return the first `rows` positions of the configured sinusoid."""
    table: Tensor = SinusoidalPositions(config.width, layout=config.position_layout)(torch.arange(rows)[None])[0]
    return table


def _positions_to_table(model: ModelWeights) -> ModelWeights:
    """Write the sinusoid (or zeros) as a learned position table of the maximum length."""
    config, weights = model
    rows = config.max_length
    table = sinusoid_table(config, rows) if config.positions == "sinusoidal" else torch.zeros(rows, config.width)
    parts = ("source", "target") if config.family == "encoder_decoder" else ("embedding",)
    tables = {f"{part}.positions.table.weight": table.clone() for part in parts}
    changed = config.with_changes(positions="learned", position_layout="interleaved")
    return ModelWeights(changed, {**weights, **tables})


INPUTS = ("table", "target_table", "next_token", "query_key_value", "query", "key_value", "inward")
"""Modules whose last weight axis is the model width; that of OUTPUTS is the first."""
OUTPUTS = ("output", "outward", "norm")


def _deinterleave(model: ModelWeights) -> ModelWeights:
    """Permute the features so that all sines come before all cosines."""
    config, weights = model
    order = torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])
    permuted = {}
    for name, weight in weights.items():
        module, kind = name.split(".")[-2:]
        if module in INPUTS and kind == "weight":
            weight = weight[..., order]
        elif module in OUTPUTS:
            weight = weight[order]
        permuted[name] = weight
    return ModelWeights(config.with_changes(position_layout="halves"), permuted)


def _tied_heads(model: ModelWeights) -> set[str]:
    """Return the heads that use the token table."""
    family = {"next_token"} if model.config.family != "encoder" else set()
    return family | ({*model.config.tasks} & {"masked_token"})


def _fold_embedding_scale(model: ModelWeights, *, may_untie: bool) -> ModelWeights:
    """Multiply the token vectors by √d; a tied output layer then needs its own table."""
    config, weights = model
    tied = config.tie_output and _tied_heads(model)
    if tied and (not may_untie or "masked_token" in tied):
        return model
    output = {"heads.next_token.weight": weights.get("target_table.weight", weights["table.weight"])} if tied else {}
    tables = {name: weights[name] * math.sqrt(config.width) for name in weights if name.split(".")[0] in INPUTS[:2]}
    changed = config.with_changes(embedding_scale=False, tie_output=config.tie_output and not tied)
    return ModelWeights(changed, {**weights, **tables, **output})


def _add_zero_weights(model: ModelWeights, **settings: Any) -> ModelWeights:
    """Add the weights of further settings as zeros."""
    config = model.config.with_changes(**settings)
    with torch.device("meta"):
        empty = build(config).state_dict()
    return ModelWeights(config, {name: model.weights.get(name, torch.zeros(empty[name].shape)) for name in empty})
