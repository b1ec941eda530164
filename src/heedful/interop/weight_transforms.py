"""The same function with other weights: how a layout holds a design it has no word for.

A sinusoid is a table that nobody trained; an absent bias is a bias of 0; the paper's interleaved sines and cosines
are another numbering of the features. Each rewriting here leaves every logit as it was.
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
    """A model as data."""

    config: TransformerConfig
    weights: dict[str, Tensor]


def rewrite_for_layout(model: ModelWeights, wanted: Mapping[str, Any], free: Container[str]) -> ModelWeights:
    """As near to the `wanted` settings as the same function can be written; `free` are those a layout can vary."""
    # Dropout is no part of what a trained model computes.
    config = model.config.with_changes(**{name: wanted[name] for name in ("dropout", "attention_dropout")})
    model = ModelWeights(config, dict(model.weights))
    if config.positions in ("sinusoidal", "none") and wanted["positions"] == "learned":
        model = _tabled(model)
    if config.positions == "sinusoidal" and (config.position_layout, wanted["position_layout"]) == (
        "interleaved",
        "halves",
    ):
        model = _in_halves(model)
    if config.embedding_scale and not wanted["embedding_scale"]:
        model = _unscaled(model, may_untie="tie_output" in free)
    if wanted["bias"] and not config.bias:
        model = _filled(model, bias=True)
    if "segments" in free and not config.segments:
        model = _filled(model, segments=1)
    return model


def sinusoid_table(config: TransformerConfig, rows: int) -> Tensor:
    """The first `rows` positions of the configuration's sinusoid, written out."""
    made: Tensor = SinusoidalPositions(config.width, layout=config.position_layout)(torch.arange(rows)[None])[0]
    return made


def _tabled(model: ModelWeights) -> ModelWeights:
    """A learned table that holds the sinusoid (or nothing), up to the longest text the model is meant for."""
    config, weights = model
    rows = config.max_length
    table = sinusoid_table(config, rows) if config.positions == "sinusoidal" else torch.zeros(rows, config.width)
    parts = ("source", "target") if config.family == "encoder_decoder" else ("embedding",)
    tables = {f"{part}.positions.table.weight": table.clone() for part in parts}
    changed = config.with_changes(positions="learned", position_layout="interleaved")
    return ModelWeights(changed, {**weights, **tables})


INPUTS = ("table", "target_table", "next_token", "query_key_value", "query", "key_value", "inward")
"""Modules whose last axis is the model's width; all others that meet it have it first."""
OUTPUTS = ("output", "outward", "norm")


def _in_halves(model: ModelWeights) -> ModelWeights:
    """Number the features so that all sines come before all cosines."""
    config, weights = model
    order = torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])
    numbered = {}
    for name, weight in weights.items():
        module, kind = name.split(".")[-2:]
        if module in INPUTS and kind == "weight":
            weight = weight[..., order]
        elif module in OUTPUTS:
            weight = weight[order]
        numbered[name] = weight
    return ModelWeights(config.with_changes(position_layout="halves"), numbered)


def _readers(model: ModelWeights) -> set[str]:
    """Heads that read the token table."""
    family = {"next_token"} if model.config.family != "encoder" else set()
    return family | ({*model.config.tasks} & {"masked_token"})


def _unscaled(model: ModelWeights, *, may_untie: bool) -> ModelWeights:
    """√d in the token vectors themselves; an output that reads the same table then needs one of its own."""
    config, weights = model
    tied = config.tie_output and _readers(model)
    if tied and (not may_untie or "masked_token" in tied):
        return model
    output = {"heads.next_token.weight": weights.get("target_table.weight", weights["table.weight"])} if tied else {}
    tables = {name: weights[name] * math.sqrt(config.width) for name in weights if name.split(".")[0] in INPUTS[:2]}
    changed = config.with_changes(embedding_scale=False, tie_output=config.tie_output and not tied)
    return ModelWeights(changed, {**weights, **tables, **output})


def _filled(model: ModelWeights, **settings: Any) -> ModelWeights:
    """With further weights that are 0, and so change nothing."""
    config = model.config.with_changes(**settings)
    with torch.device("meta"):
        empty = build(config).state_dict()
    return ModelWeights(config, {name: model.weights.get(name, torch.zeros(empty[name].shape)) for name in empty})
