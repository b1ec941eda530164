"""Misaligned pairs are found by their lengths, and aligned ones are not taken for misaligned."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from heedful.data.corpus_doctor import examine
from heedful.data.length_alignment import LengthAlignment
from heedful.data.quick_check import check_corpus, data_issues

Texts = list[str]


def translations(count: int, *, noise: float = 0.1) -> tuple[Texts, Texts]:
    """Texts of 20 to 120 characters, and others whose lengths are close to theirs."""
    random = Random(0)
    lengths = [random.randint(20, 120) for _ in range(count)]
    return ["s" * length for length in lengths], ["t" * round(length * random.gauss(1.1, noise)) for length in lengths]


def first_misaligned(source: Texts, target: Texts, chunk: int = 256) -> int | None:
    alignment = LengthAlignment()
    for start in range(0, len(source), chunk):
        rows = slice(start, start + chunk)
        alignment.add(*(np.array([len(text) for text in side[rows]]) for side in (source, target)))
    return alignment.first_misaligned()


def without_line(lines: Texts, number: int) -> Texts:
    """The lines without this one, and another at the end."""
    return [*lines[: number - 1], *lines[number:], "t" * 50]


def shuffled(lines: Texts) -> Texts:
    return Random(1).sample(lines, len(lines))


@pytest.mark.parametrize("chunk", [1, 64, 5000])
@pytest.mark.parametrize("number", [100, 2500, 4700])
def test_a_missing_line_is_located_to_its_block(number: int, chunk: int) -> None:
    source, target = translations(5000)
    first = first_misaligned(source, without_line(target, number), chunk)
    assert first is not None
    assert abs(first - number) <= 100


@pytest.mark.parametrize("count", [200, 1000, 5000])
def test_shuffled_targets_are_misaligned_from_the_first_line(count: int) -> None:
    source, target = translations(count)
    assert first_misaligned(source, shuffled(target)) == 0


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("count", [0, 1, 199, 200, 5000])
def test_translations_are_aligned_however_free(count: int, noise: float) -> None:
    assert first_misaligned(*translations(count, noise=noise)) is None


def test_pairs_sorted_by_length_are_aligned_though_lengths_hardly_vary_within_a_block() -> None:
    source, target = zip(*sorted(zip(*translations(5000), strict=True), key=lambda pair: len(pair[0])), strict=True)
    assert first_misaligned(list(source), list(target)) is None
    assert first_misaligned(list(source), shuffled(list(target))) == 0


def test_targets_of_one_length_are_not_judged() -> None:
    source, _ = translations(1000)
    assert first_misaligned(source, ["1999-12-31"] * 1000) is None


def test_few_pairs_are_not_judged() -> None:
    source, target = translations(199)
    assert first_misaligned(source, shuffled(target)) is None


def test_the_doctor_and_training_report_the_misaligned_line(tmp_path: Path) -> None:
    source, target = translations(1000)
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    for file, lines in zip(files, (source, without_line(target, 500)), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    report = examine(files)
    assert (report.count("unrelated"), report.lines("unrelated")) == (500, (501,))
    (issue,) = (issue for issue in data_issues(check_corpus(files, "pairs"), {}, {}) if "misaligned" in str(issue))
    assert str(issue).startswith("500 pairs look misaligned from about line 501 on: ")
    assert str(issue).endswith("(kept), first at a.en:501")
    files[1].write_text("".join(f"{line}\n" for line in target))
    assert examine(files).count("unrelated") == 0
