"""What people type."""

from __future__ import annotations

import pytest

from heedful.cli.argv import duration_in_seconds, resumed, spread
from heedful.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2.5m", 150), ("45", 45), ("1d", 86_400)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration_in_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "m10", "-5m", "0s", "10 m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"duration"):
        duration_in_seconds(text)


def test_a_pair_of_files_after_one_option_is_two() -> None:
    given = ["train", "translate", "a", "b", "--valid", "c", "d", "--test", "e", "f", "--steps", "3"]
    read = [
        "train",
        "translate",
        "a",
        "b",
        "--valid",
        "c",
        "--valid",
        "d",
        "--test",
        "e",
        "--test",
        "f",
        "--steps",
        "3",
    ]
    assert spread(given) == read


def test_a_table_holds_both_sides_and_running_text_has_one() -> None:
    table = ["train", "translate", "--valid", "c.tsv.gz", "a.tsv"]
    assert spread(table) == table
    text = ["train", "generate", "--valid", "c.txt", "a.txt"]
    assert spread(text) == text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train --resume run", "train --resume run"),
        ("train translate a b --out run --resume", "train translate a b --resume run"),
        ("train --resume --out run", "train --resume run"),
        ("train --out run --resume run", "train --resume run"),
        ("train a b --out run", "train a b --out run"),
    ],
)
def test_the_folder_of_a_run_need_not_be_said_twice(typed: str, meant: str) -> None:
    assert resumed(typed.split()) == meant.split()


def test_a_run_has_one_folder() -> None:
    with pytest.raises(UsageError, match="--resume a and --out b"):
        resumed(["train", "--resume", "a", "--out", "b"])
