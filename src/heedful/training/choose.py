"""The choices a person would rather not make: sizes and rates from the data, the machine and the time allowed.

Each rule is a guess that was measured, not a law: everything chosen is printed, saved in the recipe, and
can be set by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
class Situation:
    """What the choices depend on."""

    task: str
    recurrent: bool
    tokens: int
    """Of training text, all sides."""
    seconds: float
    """Time allowed for training."""
    flops: float
    """Of a large matrix product on this device, per second."""
    gpu: bool


def choose_vocabulary(task: str, characters: int) -> int:
    """Grows slowly with the text: common words whole, rare ones in pieces. A language model pays for its
    output layer at every token of a long text, so it takes fewer."""
    wish = (23 if task == "translate" else 6) * characters**0.4
    return int(max(512, min(32_000, 64 * round(wish / 64))))


def choose_held_out(task: str, characters: int) -> float:
    """The share to validate on: enough to tell two models apart, and never so much that judging takes minutes."""
    share = 0.1 if task == "generate" and characters < 10_000_000 else 0.02
    return min(share, 5_000_000 / characters)


def choose_model(situation: Situation) -> dict[str, Any]:
    """The largest size that the text can feed and the time allows to read it often enough."""
    size = next((size for size in reversed(SIZES) if _fed(size, situation) and _in_time(size, situation)), SIZES[0])
    scarce = situation.tokens < 3_000_000
    if situation.recurrent:
        family = "recurrent_encoder_decoder" if situation.task == "translate" else "recurrent_decoder"
        wide = {"width": 2 * size["width"], "layers": 1 if situation.task == "translate" else 2}
        return {"family": family, **wide, "cell": "lstm", "dropout": 0.3 if scarce else 0.2}
    family = "encoder_decoder" if situation.task == "translate" else "decoder"
    shape = {**size, "norm_order": "pre"}
    if situation.task == "generate":
        return {"family": family, **shape, "positions": "rotary", "norm": "rms", "bias": False, "activation": "silu",
                "gated": True, "feed_forward": 64 * round(size["width"] * 8 / 3 / 64), "embedding_scale": False,
                "dropout": 0.1 if situation.gpu and scarce else 0.0}  # fmt: skip
    return {"family": family, **shape, "positions": "rotary", "dropout": 0.3 if scarce else 0.1}


def parameters(size: dict[str, int], task: str) -> int:
    """Of the blocks alone: 12 d² a layer, 28 d² for an encoder layer and a decoder layer together."""
    return (28 if task == "translate" else 12) * size["layers"] * size["width"] ** 2


def _fed(size: dict[str, int], situation: Situation) -> bool:
    return parameters(size, situation.task) <= 8 * situation.tokens


EPOCHS = {"translate": 12, "generate": 3}
"""Times a text should be read before a larger model is worth it."""
MOST_EPOCHS = {"translate": 60, "generate": 30}
"""Times after which reading it again teaches nothing more."""


def _in_time(size: dict[str, int], situation: Situation) -> bool:
    return budget_tokens(size, situation) >= EPOCHS[situation.task] * situation.tokens


def budget_tokens(size: dict[str, int], situation: Situation) -> float:
    """Tokens that can be read in the time allowed: 6 operations per parameter and token, at the share of the
    machine's speed that models of this size reach."""
    # A small model leaves a GPU waiting for launches; a CPU is busy at any size.
    reached = 0.35 if not situation.gpu else min(0.3, 0.02 * (size["width"] / 256) ** 2)
    per_token = 6 * (
        parameters(size, situation.task) / (2 if situation.task == "translate" else 1) + 4000 * size["width"]
    )
    return situation.seconds * situation.flops * reached / per_token


def choose_training(situation: Situation, model: dict[str, Any]) -> dict[str, Any]:
    """Rates and regularisation; `steps` follow once a step has been timed."""
    width = model["width"]
    if situation.task == "translate":
        return {
            "batch_tokens": 8192 if situation.gpu else 3072,
            "learning_rate": min(3e-3, 2e-3 * (256 / width) ** 0.5),
            "label_smoothing": 0.1,
            "schedule": "cosine",
            "average": "exponential",
            "weight_decay": 0.01,
            "r_drop": 1.0 if situation.gpu and situation.tokens < 3_000_000 else 0.0,
        }
    return {
        "batch_tokens": 16_384 if situation.gpu else 2048,
        "context": 256 if situation.gpu else 128,
        "learning_rate": min(3e-3, 2e-3 * (256 / width) ** 0.5),
        "betas": (0.9, 0.95),
        "label_smoothing": 0.0,
        "schedule": "cosine",
        "average": "none",
        "weight_decay": 0.1,
    }
