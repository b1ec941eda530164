"""The choices a person would rather not make: sizes and rates from the data, the machine and the time allowed.

Each rule is a guess that was measured, not a law: everything chosen is printed, saved in the recipe, and
can be set by hand. What differs from task to task is in `tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZES: list[dict[str, int]] = [
    {"width": 64, "layers": 2, "heads": 4},
    {"width": 128, "layers": 3, "heads": 4},
    {"width": 192, "layers": 4, "heads": 6},
    {"width": 256, "layers": 4, "heads": 8},
    {"width": 384, "layers": 6, "heads": 6},
    {"width": 512, "layers": 6, "heads": 8},
    {"width": 768, "layers": 12, "heads": 12},
]


@dataclass(frozen=True)
class TrainingConditions:
    """What the choices depend on."""

    recurrent: bool
    tokens: int
    """Of training text, all sides."""
    seconds: float
    """Time allowed for training."""
    flops: float
    """Of a large matrix product on this device, per second."""
    gpu: bool
    pretrained: bool = False
    """Whether training goes on from a model."""

    @property
    def low_resource(self) -> bool:
        """Whether there is so little text that a model would learn it by heart."""
        return self.tokens < 3_000_000


@dataclass(frozen=True)
class ScalingRule:
    """What models of a task cost, and how much reading does them good."""

    parameters_per_layer: int
    """Parameters of a layer, in d²: 12 for attention and feed-forward, 28 for an encoder and a decoder layer."""
    stacks: int
    """Parts of a model of which each token passes one."""
    min_epochs: int
    """Times a text should be read before a larger model is worth it."""
    max_epochs: int
    """Times after which reading it again teaches nothing more."""


def vocabulary_for(wish: int, characters: int) -> int:
    """Grows slowly with the text: common words whole, rare ones in pieces."""
    return int(max(512, min(32_000, 64 * round(wish * characters**0.4 / 64))))


def largest_size(situation: TrainingConditions, appetite: ScalingRule) -> dict[str, int]:
    """The largest size that the text can feed and the time allows to read it often enough."""

    def suits(size: dict[str, int]) -> bool:
        fed = parameters(size, appetite) <= 8 * situation.tokens
        return fed and budget_tokens(size, situation, appetite) >= appetite.min_epochs * situation.tokens

    return next((size for size in reversed(SIZES) if suits(size)), SIZES[0])


def parameters(size: dict[str, int], appetite: ScalingRule) -> int:
    """Of the blocks alone."""
    return appetite.parameters_per_layer * size["layers"] * size["width"] ** 2


def budget_tokens(size: dict[str, int], situation: TrainingConditions, appetite: ScalingRule) -> float:
    """Tokens that can be read in the time allowed: 6 operations per parameter and token, at the share of the
    machine's speed that models of this size reach."""
    # A small model leaves a GPU waiting for launches; a CPU is busy at any size.
    reached = 0.35 if not situation.gpu else min(0.3, 0.02 * (size["width"] / 256) ** 2)
    per_token = 6 * (parameters(size, appetite) / appetite.stacks + 4000 * size["width"])
    return situation.seconds * situation.flops * reached / per_token
