"""Wilson's 95% confidence interval of a proportion."""

from __future__ import annotations

import math


def wilson_interval(name: str, count: int, total: int, z: float = 1.96) -> dict[str, float]:
    """A proportion and its 95% interval by name        Wilson 1927, valid near 0 and 1 and for few examples"""
    share, extra = count / max(1, total), z * z / max(1, total)
    middle = (share + extra / 2) / (1 + extra)
    spread = z * math.sqrt(share * (1 - share) / max(1, total) + extra / (4 * max(1, total))) / (1 + extra)
    return {name: share, f"{name}_low": max(0.0, middle - spread), f"{name}_high": min(1.0, middle + spread)}
