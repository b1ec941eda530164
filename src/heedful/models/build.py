"""Build a model from a preset's name or a configuration, and count its parameters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heedful.errors import UsageError
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.model_config import ModelConfig
from heedful.models.presets import preset
from heedful.models.recurrent import RecurrentDecoder, RecurrentEncoderDecoder
from heedful.models.word_vectors import WordVectors

LanguageModel = Decoder | RecurrentDecoder
TranslationModel = EncoderDecoder | RecurrentEncoderDecoder
GenerativeModel = LanguageModel | TranslationModel
Model = Encoder | GenerativeModel | WordVectors

FAMILIES: dict[str, type[nn.Module]] = {
    "encoder": Encoder,
    "decoder": Decoder,
    "encoder_decoder": EncoderDecoder,
    "recurrent_decoder": RecurrentDecoder,
    "recurrent_encoder_decoder": RecurrentEncoderDecoder,
    "word_vectors": WordVectors,
}


def build(architecture: str | ModelConfig, **changes: Any) -> Any:
    """A freshly initialized model from a preset's name or a configuration, with any setting changed.

    Under `torch.device("meta")` no weights are allocated: call `to_empty` and `initialize`, or load weights.
    """
    if isinstance(architecture, str):
        config = preset(architecture, **changes)
    else:
        config = architecture.with_changes(**changes) if changes else architecture
    return FAMILIES[config.family](config)


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters by component; a shared weight counts once."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        rows = [*self.parts.items(), ("total", self.total)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {number:>14,}  {number / self.total:>6.1%}" for name, number in rows)


def count_parameters(architecture: str | ModelConfig | nn.Module, **changes: Any) -> ParameterCount:
    """Number of parameters of a preset, configuration or model, by component; allocates no weights."""
    if isinstance(architecture, nn.Module):
        if changes:
            raise UsageError("a built model cannot be changed; pass its configuration with the changes instead")
        model = architecture
    else:
        with torch.device("meta"):
            model = build(architecture, **changes)
    components: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        components[component_of(name)] += weight.numel()
    return ParameterCount(dict(components))


COMPONENTS = {
    "table": "token vectors",
    "context": "context vectors",
    "order": "word-order vectors",
    "target_table": "target token vectors",
    "embedding": "positions and segments",
    "source": "source positions",
    "target": "target positions",
    "heads": "heads",
    "next_token": "heads",
    "bridge": "context",
    "summary": "context",
    "cross": "context",
    "combine": "context",
}


def component_of(name: str) -> str:
    """The component of a parameter: `decoder.blocks.3.cross.query.weight` → "decoder cross-attention"."""
    top, *rest = name.split(".")
    if top in COMPONENTS:
        return COMPONENTS[top]
    if rest[0] != "blocks":
        return f"{top} recurrence" if rest[0] == "cell" else f"{top} norms"
    kind = {"attention": "self-attention", "cross": "cross-attention", "feed_forward": "feed-forward"}
    return f"{top} {kind.get(rest[2], 'norms')}"
