"""Presets: configurations of well-known models.

`preset("gpt2")` returns a configuration; `preset("gpt2", layers=4)` a changed one.
"""

from __future__ import annotations

from typing import Any

from heedful.errors import UsageError, nearest
from heedful.models.model_config import ModelConfig, RecurrentConfig, TransformerConfig, WordVectorsConfig

PAPER: dict[str, Any] = {"family": "encoder_decoder", "vocabulary": 37_000}
"""Vaswani 2017, table 3: post-norm, sinusoidal, one shared table for source, target and output."""

BERT: dict[str, Any] = {
    "family": "encoder",
    "vocabulary": 30_522,
    "positions": "learned",
    "max_length": 512,
    "segments": 2,
    "activation": "gelu",
    "norm_epsilon": 1e-12,
    "embedding_norm": True,
    "embedding_scale": False,
    "tasks": ("pooled",),
}
"""Devlin 2019; the small ones from Turc 2019."""

GPT2: dict[str, Any] = {
    "family": "decoder",
    "vocabulary": 50_257,
    "positions": "learned",
    "max_length": 1024,
    "activation": "gelu_tanh",
    "norm_order": "pre",
    "embedding_scale": False,
}
"""Radford 2019."""

LLAMA: dict[str, Any] = {
    "family": "decoder",
    "positions": "rotary",
    "activation": "silu",
    "gated": True,
    "bias": False,
    "norm": "rms",
    "norm_order": "pre",
    "embedding_scale": False,
    "dropout": 0.0,
}
"""Touvron 2023: rotary positions, RMSNorm, gated feed-forward, no biases."""

LAPTOP: dict[str, Any] = {"norm_order": "pre", "vocabulary": 8_000}
"""Small enough to train on a laptop; pre-norm, which tolerates a wide range of learning rates."""

RECURRENT: dict[str, Any] = {"family": "recurrent_encoder_decoder", "vocabulary": 8_000, "width": 256}
"""Encoder-decoders of Luong 2015 and, without attention, Sutskever 2014; as small as the laptop models."""

PRESETS: dict[str, dict[str, Any]] = {
    "paper-base": PAPER,
    "paper-big": {**PAPER, "width": 1024, "heads": 16, "dropout": 0.3},
    "bert-tiny": {**BERT, "layers": 2, "width": 128, "heads": 2},
    "bert-mini": {**BERT, "layers": 4, "width": 256, "heads": 4},
    "bert-small": {**BERT, "layers": 4, "width": 512, "heads": 8},
    "bert-medium": {**BERT, "layers": 8, "width": 512, "heads": 8},
    "bert-base": {**BERT, "layers": 12, "width": 768, "heads": 12},
    "gpt2": {**GPT2, "layers": 12, "width": 768, "heads": 12},
    "gpt2-medium": {**GPT2, "layers": 24, "width": 1024, "heads": 16},
    "gpt2-large": {**GPT2, "layers": 36, "width": 1280, "heads": 20},
    "gpt2-xl": {**GPT2, "layers": 48, "width": 1600, "heads": 25},
    "llama-135m": {
        **LLAMA,
        "vocabulary": 49_152,
        "layers": 30,
        "width": 576,
        "heads": 9,
        "key_value_heads": 3,
        "feed_forward": 1536,
        "max_length": 2048,
    },
    "llama-7b": {
        **LLAMA,
        "vocabulary": 32_000,
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "feed_forward": 11_008,
        "max_length": 2048,
        "tie_output": False,
        "norm_epsilon": 1e-6,
    },
    "laptop-translator": {**LAPTOP, "family": "encoder_decoder", "layers": 3, "width": 256, "heads": 4},
    "laptop-writer": {**LAPTOP, "family": "decoder", "layers": 4, "width": 256, "heads": 4},
    "laptop-reader": {**LAPTOP, "family": "encoder", "layers": 4, "width": 256, "heads": 4, "tasks": ("masked_token",)},
    "recurrent-translator": RECURRENT,
    "recurrent-bottleneck": {**RECURRENT, "attention": "none"},
    "recurrent-writer": {**RECURRENT, "family": "recurrent_decoder", "cell": "lstm", "layers": 2},
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The configuration called `name`, with any of its settings changed."""
    if name not in PRESETS:
        raise UsageError(f"unknown preset '{name}'; {nearest(name, PRESETS)}")
    return make_config({**PRESETS[name], **changes})


def make_config(settings: dict[str, Any]) -> ModelConfig:
    """A configuration of the class that belongs to the settings' `family`."""
    family = str(settings.get("family", ""))
    if family == "word_vectors":
        return WordVectorsConfig(**settings)
    return RecurrentConfig(**settings) if family.startswith("recurrent") else TransformerConfig(**settings)
