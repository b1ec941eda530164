"""Settings of single sub-layers: skip, norm, heads and feed-forward width, where they differ from the model's (B7)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.errors import UsageError, nearest
from heedful.layers.norms import NormName


class SublayerSettings(Config):
    """Settings of all sub-layers that a name or pattern stands for; None leaves the model's.

    `part` is named as for interventions: "encoder.0.attention", "decoder.*.cross", "*.feed_forward", or a whole layer
    or stack ("decoder.2", "encoder"). Of several that set the same, the last counts.
    """

    part: str
    skip: bool | None = None
    norm: NormName | None = None
    heads: Annotated[int, Field(ge=0, le=1 << 16)] | None = None
    """0: no attention. Heads keep the width that they have in the model."""
    feed_forward: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    """m; 0: no feed-forward network."""

    @model_validator(mode="after")
    def _sets_something(self) -> SublayerSettings:
        if not self.changes:
            raise UsageError(f"sublayers: '{self.part}' sets nothing; set {', '.join(SETTINGS)}")
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that are set."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}


SETTINGS = ("skip", "norm", "heads", "feed_forward")
ONLY_IN = {"heads": ("attention", "cross"), "feed_forward": ("feed_forward",)}
"""Settings of one kind of sub-layer; skip and norm are settings of every kind."""


def sublayer_names(stacks: dict[str, int], *, cross: str | None) -> list[str]:
    """The names of all sub-layers; `stacks`: the layers of each stack; `cross`: the stack with cross-attention."""
    return [
        f"{stack}.{layer}.{kind}"
        for stack, layers in stacks.items()
        for layer in range(layers)
        for kind in ("attention", "cross", "feed_forward")
        if kind != "cross" or stack == cross
    ]


def changes_of(name: str, sublayers: Sequence[SublayerSettings]) -> dict[str, Any]:
    """The settings of the sub-layer of this name that differ from the model's."""
    kind = name.rpartition(".")[2]
    changes: dict[str, Any] = {}
    for settings in sublayers:
        if _stands_for(settings.part, name):
            changes |= {key: value for key, value in settings.changes.items() if kind in ONLY_IN.get(key, (kind,))}
    return changes


def check_sublayers(sublayers: Sequence[SublayerSettings], names: Sequence[str]) -> None:
    """Raise UsageError for a part that matches no sub-layer, or a setting that its sub-layers do not have."""
    for settings in sublayers:
        matching = [name for name in names if _stands_for(settings.part, name)]
        if not matching:
            raise UsageError(f"sublayers: no sub-layer is called '{settings.part}'; {nearest(settings.part, names)}")
        kinds = {name.rpartition(".")[2] for name in matching}
        for key in settings.changes:
            if not kinds & set(ONLY_IN.get(key, tuple(kinds))):
                raise UsageError(
                    f"sublayers: '{settings.part}' has no {key}; {key} belongs to {' and '.join(ONLY_IN[key])}"
                )


def _stands_for(part: str, name: str) -> bool:
    """Whether a name or pattern stands for a sub-layer: itself, or the layer or stack that it is in."""
    path = name.split(".")
    return any(fnmatchcase(".".join(path[:length]), part) for length in range(1, len(path) + 1))
