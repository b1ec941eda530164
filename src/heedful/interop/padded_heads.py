"""Give a pruned model all of its heads back, with weights of 0, for formats with one number of heads in every layer.

Such a head adds nothing, so every logit stays; what pruning saved is lost in that format.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.layers.multi_head_attention import CrossAttention, MultiHeadAttention, SelfAttention
from heedful.models.build import Model, build
from heedful.models.model_config import ModelConfig, TransformerConfig


def all_heads_config(config: ModelConfig) -> ModelConfig:
    """The configuration with every head that pruning removed; other configurations stay as they are."""
    if not isinstance(config, TransformerConfig) or config.key_value_heads not in (None, config.heads):
        return config
    heads = [sublayer.heads or 0 for sublayer in config.sublayers if set(sublayer.changes) == {"heads"}]
    is_pruned = len(heads) == len(config.sublayers) > 0 and all(0 < number <= config.heads for number in heads)
    return config.with_changes(sublayers=()) if is_pruned else config


def with_all_heads(model: Model) -> Model:
    """The model with every head that pruning removed; another model stays as it is."""
    config = all_heads_config(model.config)
    if config is model.config or not isinstance(config, TransformerConfig):
        return model
    weights = dict(model.state_dict())
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention) and (missing := config.heads - module.heads):
            weights |= {f"{path}.{name}": weight for name, weight in _padded(module, missing).items()}
    whole: Model = build(config).to(model.device, next(model.parameters()).dtype)
    whole.load_state_dict(weights)
    return whole.train(model.training)


def _padded(module: MultiHeadAttention, missing: int) -> dict[str, Tensor]:
    """The weights of an attention with `missing` more heads, whose weights are 0."""
    keys, values = missing * module.d_k, missing * module.d_v
    output = module.output.weight.detach()
    padded = {"output.weight": torch.cat([output, output.new_zeros(len(output), values)], 1)}
    projections: dict[str, tuple[list[int], list[int]]]
    if isinstance(module, CrossAttention):
        projections = {
            "query": ([module.heads * module.d_k], [keys]),
            "key_value": (list(module.sizes), [keys, values]),
        }
    else:
        assert isinstance(module, SelfAttention)
        projections = {"query_key_value": (list(module.sizes), [keys, keys, values])}
    for name, (sizes, added) in projections.items():
        linear: Any = getattr(module, name)
        for kind, weight in linear.named_parameters():
            parts = zip(weight.detach().split(sizes), added, strict=True)
            pieces = ((part, part.new_zeros(rows, *part.shape[1:])) for part, rows in parts)
            padded[f"{name}.{kind}"] = torch.cat([piece for pair in pieces for piece in pair])
    return padded
