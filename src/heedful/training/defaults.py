"""Default model sizes and rates, chosen from the amount of data, the device and the time limit.

The rules are empirical. Everything chosen is printed, saved in the recipe, and can be overridden. Rules that differ
between tasks are in `tasks`.
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
    """The data, device and time limit that the defaults depend on."""

    recurrent: bool
    tokens: int
    """Tokens of training text, all sides."""
    seconds: float
    """Time limit."""
    flops: float
    """Operations per second of a large matrix product on this device."""
    gpu: bool
    pretrained: bool = False
    """Whether a pretrained model is fine-tuned."""

    @property
    def low_resource(self) -> bool:
        """Whether there is so little text that a model would memorize it."""
        return self.tokens < 3_000_000


@dataclass(frozen=True)
class ScalingRule:
    """Compute cost of a task's models, and how many epochs they benefit from."""

    parameters_per_layer: int
    """In units of d²: 12 for attention and feed-forward, 28 for an encoder and a decoder layer."""
    stacks: int
    """Stacks of layers of which each token passes one: 2 for an encoder-decoder."""
    min_epochs: int
    """Epochs that must be affordable for a larger model to be chosen."""
    max_epochs: int
    """Epochs after which models stop improving."""
    finetune_epochs: int = 0
    """Most epochs for a pretrained model (Devlin 2019, A.3: two to four); 0: as for a new one."""

    def most_epochs(self, *, pretrained: bool) -> int:
        return self.finetune_epochs if pretrained and self.finetune_epochs else self.max_epochs


def largest_size(conditions: TrainingConditions, rule: ScalingRule) -> dict[str, int]:
    """The largest size with enough training text for its parameters and enough time for `min_epochs`."""

    def fits(size: dict[str, int]) -> bool:
        enough_text = parameters(size, rule) <= 8 * conditions.tokens
        return enough_text and budget_tokens(size, conditions, rule) >= rule.min_epochs * conditions.tokens

    return next((size for size in reversed(SIZES) if fits(size)), SIZES[0])


def parameters(size: dict[str, int], rule: ScalingRule) -> int:
    """Parameters of the layers, without embeddings."""
    return rule.parameters_per_layer * size["layers"] * size["width"] ** 2


def budget_tokens(size: dict[str, int], conditions: TrainingConditions, rule: ScalingRule) -> float:
    """Tokens that fit into the time limit: 6 operations per parameter and token, at the utilization of this size."""
    # On a GPU small models are limited by kernel launches; on a CPU utilization hardly depends on the size.
    utilization = 0.35 if not conditions.gpu else min(0.3, 0.02 * (size["width"] / 256) ** 2)
    per_token = 6 * (parameters(size, rule) / rule.stacks + 4000 * size["width"])
    return conditions.seconds * conditions.flops * utilization / per_token
