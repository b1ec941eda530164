"""Numbers as text for readers: counts with their noun, bytes, operations, durations."""

from __future__ import annotations

import re
from collections.abc import Sequence


def count(number: int, noun: str, plural: str = "") -> str:
    """1 → "1 step", 2000 → "2,000 steps"; `plural` where it does not end in s alone."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


SINGULAR = {
    **{f"{noun}s": noun for noun in ("answer", "example", "label", "line", "pair", "passage", "question", "record",
                                     "row", "sentence", "source", "target", "text", "window")},
    "are": "is", "their": "its", "have": "has", "were": "was",
}  # fmt: skip


def describe_count(number: int, description: str) -> str:
    """2 → "2 pairs that are blank", 1 → "1 pair that is blank": a count with a description in the plural.

    After a comma only "their" changes: the rest may count something else.
    """
    if number == 1:
        counted, comma, rest = description.partition(",")
        counted = re.sub(r"\w+", lambda word: SINGULAR.get(word[0], word[0]), counted)
        description = counted + comma + rest.replace(" their ", " its ")
    return f"{number:,} {description}"


def format_bytes(number: int | float) -> str:
    """1_500_000 → "1.43 MiB"."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def format_flops(number: int | float) -> str:
    """2.5e12 → "2.5 TFLOP"."""
    return _scaled(number, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def format_duration(seconds: float) -> str:
    """0.04 → "0.04s", 7.3 → "7s", 90 → "1m30s", 7260 → "2h01m"."""
    if 0 < seconds < 0.95:
        return f"{seconds:.1g}s"
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def _scaled(number: int | float, base: int, units: Sequence[str]) -> str:
    """Three significant digits, in the smallest unit that has at most three before the point: never 1e+03."""
    power = next((power for power in range(len(units)) if number / base**power < 999.5), len(units) - 1)
    value = number / base**power
    return f"{value:.3g} {units[power]}" if value < 999.5 else f"{value:,.0f} {units[power]}"
