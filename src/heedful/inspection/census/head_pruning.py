"""Remove attention heads, or whole sub-layers, from a model: the same model with smaller matrices, without training.

MultiHead = Σ_h h_h W_h + b        Vaswani 2017, 3.2.2 · A5

Removing head h drops its rows of W_q, W_k, W_v and its columns of W_o. If its mean value m_h is known, m_h W_h is added
to b: the smaller model then equals `Ablate(…, to="mean")`, otherwise `Ablate(…, to="zero")` (Michel 2019).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.interventions.means import ActivationMeans
from heedful.interventions.parts import matching_parts
from heedful.layers.multi_head_attention import CrossAttention, MultiHeadAttention
from heedful.layers.residual import Residual
from heedful.models.build import build
from heedful.models.model_config import ModelConfig, TransformerConfig
from heedful.models.sublayer_settings import SublayerSettings


class PrunedParts(NamedTuple):
    """The heads and sub-layers that are removed from a model."""

    heads: dict[str, list[int]]
    """Heads by the name of their attention."""
    sublayers: list[str]
    """Whole attentions and feed-forward networks."""


def parts_to_prune(model: Any, names: Sequence[str]) -> PrunedParts:
    """The heads, attentions and feed-forward networks with these names; UsageError for any other part."""
    heads: defaultdict[str, set[int]] = defaultdict(set)
    sublayers: list[str] = []
    for name in names:
        for part in matching_parts(model, name):
            is_sublayer = part.kind in ("attention", "cross-attention", "feed-forward")
            if not is_sublayer or not isinstance(model.config, TransformerConfig):
                raise UsageError(
                    f"'{name}' cannot be pruned: only attention heads, attentions and feed-forward networks of a "
                    "transformer can, such as encoder.0.attention.head.1"
                )
            if part.head is None:
                sublayers.append(part.name)
            else:
                heads[part.name.partition(".head.")[0]].add(part.head)
    kept = {name: sorted(numbers) for name, numbers in heads.items() if name not in sublayers}
    return PrunedParts(kept, list(dict.fromkeys(sublayers)))


def prune_parts(model: Any, parts: PrunedParts, means: ActivationMeans | None = None) -> Any:
    """A model without these parts; an attention that loses heads keeps at least one. The model itself does not change.

    A sub-layer is removed with its skip-connection and norm: in a pre-norm model that equals `Ablate`, in a post-norm
    model the norm is lost as well.
    """
    if parts.heads:
        check_prunable(model.config)
    attentions = {name: model.get_submodule(_path(name)) for name in parts.heads}
    for name, module in attentions.items():
        if len(parts.heads[name]) >= module.heads:
            raise UsageError(f"{name} has {module.heads} heads, and an attention keeps at least one")
    config = _pruned_config(model.config, parts, {name: attention.heads for name, attention in attentions.items()})
    weights = dict(model.state_dict())
    for name, module in attentions.items():
        mean = None if means is None else means.at(f"{name}.heads")
        kept = _without_heads(module, parts.heads[name], mean)
        weights |= {f"{_path(name)}.{key}": value for key, value in kept.items()}
    pruned = build(config).to(model.device, next(model.parameters()).dtype)
    names = _norm_names(pruned, model)
    pruned.load_state_dict({name: weights[names.get(name, name)] for name in pruned.state_dict()})
    return pruned.train(model.training)


def _pruned_config(config: TransformerConfig, parts: PrunedParts, heads: Mapping[str, int]) -> TransformerConfig:
    """The configuration with new sizes of sub-layers: earlier ones of the same sub-layers are replaced."""
    smaller = [SublayerSettings(part=name, heads=heads[name] - len(gone)) for name, gone in parts.heads.items()]
    for name in parts.sublayers:
        size = "feed_forward" if name.endswith("feed_forward") else "heads"
        smaller.append(SublayerSettings(part=name, **{size: 0}))
    changed = {sublayer.part for sublayer in smaller}
    kept = [item for item in config.sublayers if item.part not in changed or set(item.changes) & {"skip", "norm"}]
    return config.with_changes(sublayers=tuple(sublayer.model_dump() for sublayer in (*kept, *smaller)))


def _norm_names(pruned: Any, model: Any) -> dict[str, str]:
    """Map the pruned model's weight names of residual connections to the model's: each block numbers its own."""
    whole = {(path.rpartition(".residual.")[0], residual.alias): path for path, residual in _residuals(model)}
    return {
        f"{path}.{weight}": f"{whole[path.rpartition('.residual.')[0], residual.alias]}.{weight}"
        for path, residual in _residuals(pruned)
        for weight in residual.state_dict()
    }


def _residuals(model: Any) -> list[tuple[str, Residual]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, Residual)]


def check_prunable(config: ModelConfig) -> None:
    """Raise UsageError for a model whose heads cannot be removed individually."""
    if not isinstance(config, TransformerConfig):
        raise UsageError(f"a model of the family '{config.family}' has no attention heads to prune")
    if config.key_value_heads not in (None, config.heads):
        raise UsageError(
            f"{config.heads} heads share {config.key_value_heads} key/value heads, so no single one can be pruned"
        )
    allowed: dict[str, tuple[Any, ...]] = {
        "score": ("dot", "scaled_dot"), "score_scale": (None, "1/d_k"), "projection": ("linear",),
        "positions": ("none", "sinusoidal", "learned", "rotary"),
    }  # fmt: skip
    for name, values in allowed.items():
        if (value := getattr(config, name)) not in values:
            raise UsageError(f"heads of a model with {name}='{value}' cannot be pruned: it has a value for each head")


def _without_heads(module: MultiHeadAttention, removed: Sequence[int], mean: Tensor | None) -> dict[str, Tensor]:
    """The weights of an attention without some heads; their mean values become part of the bias."""
    kept = [head for head in range(module.heads) if head not in removed]
    keys, values = _columns(kept, module.d_k), _columns(kept, module.d_v)
    output, bias = module.output.weight, module.output.bias
    weights: dict[str, Tensor] = {"output.weight": output[:, values]}
    if bias is not None:
        gone = _columns(removed, module.d_v)
        constant = 0.0 if mean is None else output[:, gone] @ mean[list(removed)].flatten().to(output)
        weights["output.bias"] = bias + constant
    if isinstance(module, CrossAttention):
        projections = {"query": (keys,), "key_value": (keys, values)}
    else:
        projections = {"query_key_value": (keys, keys, values)}
    for name, rows in projections.items():
        linear: Any = getattr(module, name)
        sizes = {"query": [module.heads * module.d_k]}.get(name) or module.sizes
        for kind, weight in linear.named_parameters():
            parts = zip(weight.split(sizes), rows, strict=True)
            weights[f"{name}.{kind}"] = torch.cat([part[index] for part, index in parts])
    return {name: weight.detach() for name, weight in weights.items()}


def _columns(heads: Sequence[int], width: int) -> list[int]:
    """The columns of these heads, side by side."""
    return [head * width + column for head in heads for column in range(width)]


def _path(name: str) -> str:
    """The path of an attention's module: decoder.1.cross is decoder.blocks.1.cross."""
    stack, layer, attention = name.split(".")
    return f"{stack}.blocks.{layer}.{attention}"
