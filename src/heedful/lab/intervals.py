"""Means over seeds with their 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5% quantiles of Student's t distribution, for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95% interval; a single seed has no interval."""

    mean: float
    low: float
    high: float
    seeds: int
    """Number of seeds with a finite value."""
    diverged: int = 0
    """Number of seeds whose training diverged; the mean excludes them."""

    @property
    def has_interval(self) -> bool:
        return self.seeds > 1


def estimate(values: Sequence[float | None]) -> Estimate:
    """m ± t_{0.975, n−1} · s / √n: the mean over seeds and Student's 95% interval.

    Not a bootstrap: resampling three or five seeds gives intervals that are too narrow.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    diverged = len(values) - len(finite)
    if not finite:
        return Estimate(math.nan, math.nan, math.nan, 0, diverged)
    mean = math.fsum(finite) / len(finite)
    if len(finite) == 1:
        return Estimate(mean, -math.inf, math.inf, 1, diverged)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1)
    degrees = len(finite) - 1
    margin = (T_QUANTILES[degrees - 1] if degrees <= 30 else 1.96) * math.sqrt(variance / len(finite))
    return Estimate(mean, mean - margin, mean + margin, len(finite), diverged)
