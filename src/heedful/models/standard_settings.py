"""The settings of models that specialized decoders and other libraries' formats express.

All others are computed by the model's own modules only. A backend or export checks `nonstandard_setting` first, so that
a setting it does not know is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.models.model_config import ModelConfig, RecurrentConfig, WordVectorsConfig
from heedful.models.sublayer_settings import SublayerSettings

STANDARD: dict[str, tuple[Any, ...]] = {
    "score": ("dot", "scaled_dot", "bilinear", "additive"),
    "score_scale": (None,),
    "head_activation": ("identity",),
    "projection": ("linear",),
    "encoder_causal": (False,),
    "decoder_causal": (True,),
    "exclude_self": (False,),
    "sublayers": ((),),
    "norm": ("layer", "rms"),
    "norm_bias": (None,),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
}
ONLY_STANDARD = tuple(name for name, values in STANDARD.items() if len(values) == 1)
"""Settings with one standard value, which other formats need not store."""


STANDARD_RECURRENT: dict[str, tuple[Any, ...]] = {
    "cell": ("gru", "lstm"),
    "context": ("last",),
}


def nonstandard_setting(config: ModelConfig, *, other_sizes: bool = False) -> str | None:
    """The first setting that only the model's own modules compute, as `setting=value`; None if there is none.

    `other_sizes`: layers may differ in their number of heads and feed-forward width, as those of a pruned model do.
    """
    if isinstance(config, WordVectorsConfig):
        return None
    for name, values in (STANDARD_RECURRENT if isinstance(config, RecurrentConfig) else STANDARD).items():
        if (value := getattr(config, name)) in values or (name == "sublayers" and other_sizes and _are_sizes(value)):
            continue
        return f"sublayers of {value[0].part}" if name == "sublayers" else f"{name}={value!r}"
    return "feed_forward=0" if getattr(config, "feed_forward", None) == 0 else None


def _are_sizes(sublayers: Sequence[SublayerSettings]) -> bool:
    """Whether sub-layers differ in nothing but their sizes, and none is missing."""
    return all(set(part.changes) <= {"heads", "feed_forward"} and all(part.changes.values()) for part in sublayers)
