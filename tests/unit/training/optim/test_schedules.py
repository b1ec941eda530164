"""Learning-rate schedules: warm-up, then the shape of each schedule."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from heedful.training.optim.schedules import SCHEDULES, learning_rate_factor


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup_is_linear_up_to_the_peak(schedule: str) -> None:
    rates = [learning_rate_factor(schedule, step, steps=1000, warmup=100) for step in range(101)]  # type: ignore[arg-type]
    assert rates[:100] == pytest.approx([(step + 1) / 100 for step in range(100)])
    assert rates[100] == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_after_warmup_the_learning_rate_never_rises(schedule: str) -> None:
    rates = [learning_rate_factor(schedule, step, steps=500, warmup=50) for step in range(50, 500)]  # type: ignore[arg-type]
    assert all(later <= earlier for earlier, later in pairwise(rates))
    assert all(0 <= rate <= 1 for rate in rates)


def test_inverse_root_matches_the_paper() -> None:
    """min(s^−½, s·w^−1.5), scaled to peak at 1: Vaswani 2017, eq. 3."""
    for step in (1, 50, 399, 400, 1600, 10_000):
        paper = min(step**-0.5, step * 400**-1.5) * math.sqrt(400)
        assert learning_rate_factor("inverse_root", step - 1, steps=20_000, warmup=400) == pytest.approx(
            paper, rel=2e-3
        )


def test_cosine_linear_and_stable_decay_end_at_zero() -> None:
    for schedule in ("cosine", "linear", "stable_decay"):
        assert learning_rate_factor(schedule, 999, steps=1000, warmup=10) < 0.01  # type: ignore[arg-type]


def test_stable_decay_stays_at_the_peak_for_80_percent() -> None:
    assert learning_rate_factor("stable_decay", 809, steps=1010, warmup=10) == 1.0
    assert learning_rate_factor("stable_decay", 830, steps=1010, warmup=10) < 1.0
