"""Numbers as text for readers."""

from __future__ import annotations

import pytest

from heedful.quantities import count, describe_count, format_bytes, format_duration, format_flops


@pytest.mark.parametrize(
    ("number", "noun", "text"), [(1, "thread", "1 thread"), (2, "thread", "2 threads"), (0, "step", "0 steps")]
)
def test_nouns_agree_with_their_count(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text
    assert count(12_000, "query", "queries") == "12,000 queries"


@pytest.mark.parametrize(
    ("description", "one"),
    [
        ("duplicate pairs", "1 duplicate pair"),
        ("long lines or records that are also held out", "1 long line or record that is also held out"),
        ("untranslated targets, equal to their source", "1 untranslated target, equal to its source"),
        ("questions whose answer is not in the passage", "1 question whose answer is not in the passage"),
    ],
)
def test_a_description_agrees_with_a_count_of_one(description: str, one: str) -> None:
    assert describe_count(1, description) == one
    assert describe_count(1200, description) == f"1,200 {description}"


def test_bytes_and_flops_have_three_digits_and_never_an_exponent() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1536) == "1.5 KiB"
    assert format_bytes(3 << 40) == "3 TiB"
    assert format_bytes(5000 << 40) == "5,000 TiB"
    assert format_bytes(1000 << 10) == "0.977 MiB"
    assert format_flops(2.5e12) == "2.5 TFLOP"
    assert format_flops(999_999) == "1 MFLOP"
    assert format_flops(0) == "0 FLOP"
    texts = [format_bytes(1.01**power) for power in range(4000)] + [format_flops(1.01**power) for power in range(4000)]
    assert not [text for text in texts if "e" in text]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.04, "0.04s"), (0.96, "1s"), (59.4, "59s"), (90.0, "1m30s"), (3700.0, "1h01m"), (-5.0, "0s")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
