"""Means over seeds and their intervals."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from heedful.lab.intervals import T_QUANTILES, estimate


def test_the_interval_equals_students_t_interval() -> None:
    values = [0.2, 0.5, 0.9, 0.4]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    result = estimate(values)
    assert (result.mean, result.low, result.high) == pytest.approx((0.5, low, high), abs=1e-3)


def test_the_quantiles_equal_students_t_quantiles() -> None:
    assert list(T_QUANTILES) == pytest.approx([stats.t.ppf(0.975, n) for n in range(1, 31)], abs=5e-4)


def test_a_single_seed_has_no_interval() -> None:
    assert not estimate([0.5]).has_interval


def test_a_diverged_seed_is_counted_and_not_averaged() -> None:
    result = estimate([1.0, None, 3.0, math.inf])
    assert (result.mean, result.seeds, result.diverged) == (2.0, 2, 2)
    assert math.isnan(estimate([None]).mean)
