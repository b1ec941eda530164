"""Learning-rate schedules: a factor of the peak learning rate between 0 and 1 for each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

ScheduleName = Literal["inverse_root", "cosine", "linear", "stable_decay", "constant"]


def learning_rate_factor(schedule: ScheduleName, step: int, *, steps: int, warmup: int) -> float:
    """The factor at `step` (the first is 0): linear warm-up over `warmup` steps, then the schedule.

    Adam's first estimates of the gradients' second moment rest on few samples, so early steps are kept small.
    """
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[schedule](step - warmup, max(1, steps - warmup), max(1, warmup))


def _inverse_root(step: int, steps: int, warmup: int) -> float:
    """√(warmup / step)        Vaswani 2017, eq. 3"""
    return math.sqrt(warmup / (step + warmup))


def _cosine(step: int, steps: int, warmup: int) -> float:
    """½ (1 + cos πt): from 1 to 0        Loshchilov & Hutter 2017"""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


def _linear(step: int, steps: int, warmup: int) -> float:
    """1 − t: from 1 to 0"""
    return max(0.0, 1 - step / steps)


def _stable_decay(step: int, steps: int, warmup: int) -> float:
    """Warmup-stable-decay: 1 for 80% of the steps, then 1 − √t down to 0        Hägele 2024"""
    t = (step / steps - 0.8) / 0.2
    return 1.0 if t <= 0 else max(0.0, 1 - math.sqrt(min(1.0, t)))


def _constant(step: int, steps: int, warmup: int) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse_root": _inverse_root,
    "cosine": _cosine,
    "linear": _linear,
    "stable_decay": _stable_decay,
    "constant": _constant,
}
