"""Export models to CTranslate2 by filling in its model specification.

Hand-written because CTranslate2's converters only read other libraries' checkpoints. Positions are always written as a
table: CTranslate2 would compute a sinusoid of another layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.interop.equivalent_weights import sinusoid_table
from heedful.interop.padded_heads import all_heads_config, with_all_heads
from heedful.models.build import Model
from heedful.models.model_config import ModelConfig, TransformerConfig
from heedful.models.standard_settings import nonstandard_setting
from heedful.text.special_tokens import END, NEVER_GENERATED, START, UNKNOWN

Quantization = Literal["float32", "int8"]
SUPPRESSED_BIAS = -6e4
"""Bias of tokens that must never be generated: 0 after a softmax, and finite in half precision."""
MAX_POSITION_VALUES = 1 << 27
"""Size of a table of positions that are computed elsewhere: half a gigabyte of float32."""
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def import_ctranslate2() -> Any:
    """Import the package, or raise with the install command."""
    try:
        import ctranslate2
    except ImportError:
        raise UsageError("ctranslate2 is not installed; pip install ctranslate2") from None
    return ctranslate2


def unsupported_setting(config: ModelConfig) -> str | None:
    """Return the first setting CTranslate2 cannot express, as `setting=value`; None if there is none."""
    config = all_heads_config(config)
    if not isinstance(config, TransformerConfig) or config.family == "encoder":
        return f"family='{config.family}'"
    if setting := nonstandard_setting(config):
        return setting
    settings = config.resolved()
    allowed: dict[str, tuple[Any, ...]] = {
        "score": ("dot", "scaled_dot"),
        "softmax": (True,),
        "window": (None,),
        "skip": (True,),
        "position_combine": ("add",),
        "segments": (0,),
        "value_width": (settings["head_width"],),
    }
    if config.norm_order == "post":
        allowed["final_norm"] = (False,)
    if config.family == "encoder_decoder":
        allowed["positions"] = ("none", "sinusoidal", "learned", "rotary")
        allowed |= {"key_value_heads": (config.heads,), "head_width": (config.width // config.heads,)}
    for name, value in settings.items():
        if value not in allowed.get(name, (value,)):
            return f"{name}={value!r}"
    if config.positions in ("none", "sinusoidal") and (max_positions(config) or 0) * config.width > MAX_POSITION_VALUES:
        return f"max_length={config.max_length}"
    return None


def max_positions(config: TransformerConfig) -> int | None:
    """Return the size of an exported model's position table; None: no table.

    A sinusoid is unlimited here; the exported table covers the longest translation of the longest source.
    """
    if config.positions in ("rotary", "alibi"):
        return None
    return config.max_length if config.positions == "learned" else 2 * config.max_length + 32


def export_ctranslate2(
    model: Model,
    folder: Path,
    vocabularies: Sequence[Sequence[str]],
    *,
    quantization: Quantization = "float32",
) -> None:
    """Write model.bin, config.json and the vocabularies (source and target, or one for both)."""
    specs = import_ctranslate2().specs
    model = with_all_heads(model)
    config: Any = model.config
    if problem := unsupported_setting(config):
        instead = "; export to onnx instead" if isinstance(config, TransformerConfig) else ""
        raise UsageError(f"ctranslate2 cannot express {problem}{instead}")
    # Copies: quantization works in place.
    weights = {name: weight.detach().float().cpu().clone() for name, weight in model.state_dict().items()}
    target = pad_vocabulary(vocabularies[-1], config.target_vocabulary or config.vocabulary)
    decoder = _stack(specs, config, weights, "decoder")
    _output(decoder.projection, config, weights)
    if config.family == "encoder_decoder":
        spec = specs.TransformerSpec(_stack(specs, config, weights, "encoder"), decoder)
        spec.register_source_vocabulary(pad_vocabulary(vocabularies[0], config.vocabulary))
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token = target[START]
        spec.config.add_source_eos = True
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = (
        target[token] for token in (START, END, UNKNOWN)
    )
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def pad_vocabulary(tokens: Sequence[str], size: int) -> list[str]:
    """Return a name for every row of a table, which can be longer than its vocabulary, or shorter by added tokens."""
    return [*tokens[:size], *(f"<{token}>" for token in range(len(tokens), size))]


def _stack(specs: Any, config: TransformerConfig, weights: dict[str, Tensor], side: str) -> Any:
    settings, is_translator = config.resolved(), config.family == "encoder_decoder"
    options: dict[str, Any] = {
        "pre_norm": config.norm_order == "pre",
        "no_final_norm": not settings["final_norm"],
        "activation": getattr(specs.Activation, ACTIVATIONS[config.activation]),
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.gated,
        "rms_norm": config.norm == "rms",
    }
    if config.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rotary_base}
    if side == "encoder":
        spec = specs.TransformerEncoderSpec(config.layers, config.heads, **options)
        table, embedding = spec.embeddings[0], "source"
    else:
        if not is_translator:
            options |= {"num_heads_kv": settings["key_value_heads"], "head_dim": settings["head_width"]}
        options |= {"with_encoder_attention": is_translator, "alibi": config.positions == "alibi"}
        spec = specs.TransformerDecoderSpec(settings["decoder_layers"] or config.layers, config.heads, **options)
        table, embedding = spec.embeddings, "target" if is_translator else "embedding"
    separate = side == "decoder" and "target_table.weight" in weights
    table.weight = weights["target_table.weight" if separate else "table.weight"]
    spec.scale_embeddings = config.embedding_scale
    if config.positions not in ("rotary", "alibi"):
        spec.position_encodings.encodings = _positions(config, weights, embedding)
    if config.embedding_norm:
        _norm(spec.layernorm_embedding, weights, f"{embedding}.norm")
    if settings["final_norm"]:
        _norm(spec.layer_norm, weights, f"{side}.norm")
    for number, layer in enumerate(spec.layer):
        _layer(layer, config, weights, f"{side}.blocks.{number}")
    return spec


def _positions(config: TransformerConfig, weights: dict[str, Tensor], embedding: str) -> Tensor:
    rows = max_positions(config)
    assert rows is not None
    if config.positions == "learned":
        return weights[f"{embedding}.positions.table.weight"]
    return sinusoid_table(config, rows) if config.positions == "sinusoidal" else torch.zeros(rows, config.width)


def _layer(layer: Any, config: TransformerConfig, weights: dict[str, Tensor], block: str) -> None:
    attention = layer.self_attention
    _linear(attention.linear[0], weights, f"{block}.attention.query_key_value")
    _linear(attention.linear[1], weights, f"{block}.attention.output")
    _norm(attention.layer_norm, weights, f"{block}.residual.0.norm")
    cross = getattr(layer, "attention", None)
    if cross is not None:
        for part, name in zip(cross.linear, ("query", "key_value", "output"), strict=True):
            _linear(part, weights, f"{block}.cross.{name}")
        _norm(cross.layer_norm, weights, f"{block}.residual.1.norm")
    if config.score == "dot":
        for module in (attention, cross):
            if module is not None:
                module.queries_scale = np.float32(1.0)
    network, inward = layer.ffn, f"{block}.feed_forward.inward"
    if config.gated:  # W_g and W_1 are concatenated
        for kind in ("weight", "bias"):
            if (both := weights.get(f"{inward}.{kind}")) is not None:
                gate, plain = both.chunk(2)
                setattr(network.linear_0, kind, gate.clone())
                setattr(network.linear_0_noact, kind, plain.clone())
    else:
        _linear(network.linear_0, weights, inward)
    _linear(network.linear_1, weights, f"{block}.feed_forward.outward")
    _norm(network.layer_norm, weights, f"{block}.residual.{1 if cross is None else 2}.norm")


def _linear(spec: Any, weights: dict[str, Tensor], name: str) -> None:
    spec.weight = weights[f"{name}.weight"]
    if f"{name}.bias" in weights:
        spec.bias = weights[f"{name}.bias"]


def _norm(spec: Any, weights: dict[str, Tensor], name: str) -> None:
    spec.gamma = weights[f"{name}.weight"]
    if hasattr(spec, "beta"):
        spec.beta = weights.get(f"{name}.bias", torch.zeros_like(spec.gamma))


def _output(spec: Any, config: TransformerConfig, weights: dict[str, Tensor]) -> None:
    tied = weights.get("target_table.weight", weights["table.weight"])
    spec.weight = tied if config.tie_output else weights["heads.next_token.weight"]
    bias = weights.get("heads.next_token.bias", torch.zeros(len(spec.weight)))
    bias[list(NEVER_GENERATED)] = SUPPRESSED_BIAS
    spec.bias = bias
