"""Held-out text of another kind than the training text is refused or reported, with the consequence."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.quick_check import check_corpus, data_issues
from heedful.errors import DataError

ENGLISH = "the old house stands near a quiet river where many children play every summer in green grass"
GERMAN = "das alte Haus steht an einem ruhigen Fluss wo viele Kinder jeden Sommer im grünen Gras spielen"
RUSSIAN = "старый дом стоит у тихой реки где дети играют каждое лето в зелёной траве возле леса"


def write(folder: Path, name: str, sentence: str, count: int = 60) -> Path:
    file, words = folder / name, sentence.split()
    file.write_text("".join(" ".join(words[n % 7 : n % 7 + 9]) + f" {n}\n" for n in range(count)), encoding="utf-8")
    return file


@pytest.fixture
def train(tmp_path: Path) -> list[Path]:
    return [write(tmp_path, "train.en", ENGLISH), write(tmp_path, "train.de", GERMAN)]


def test_swapped_languages_of_one_script_are_refused(train: list[Path], tmp_path: Path) -> None:
    swapped = [write(tmp_path, "dev.de", GERMAN, 20), write(tmp_path, "dev.en", ENGLISH, 20)]
    with pytest.raises(DataError, match=r"dev\.de is in the target language of .*wrong order\? A model"):
        check_corpus(train, "pairs", held_out=swapped)
    check_corpus(train, "pairs", held_out=swapped[::-1])


def test_held_out_text_in_another_script_is_reported_with_the_consequence(train: list[Path], tmp_path: Path) -> None:
    report = check_corpus(train, "pairs", held_out=[write(tmp_path, "dev.en", ENGLISH), write(tmp_path, "x", RUSSIAN)])
    issues = [str(issue) for issue in data_issues(report, {}, {}) if "script" in str(issue) or "Cyrillic" in str(issue)]
    assert len(issues) == 1
    assert "60 held-out texts: the target side of x is Cyrillic" in issues[0]
    assert "say nothing about this model (kept)" in issues[0]


def test_held_out_text_in_unknown_words_is_reported(tmp_path: Path) -> None:
    def numbered(name: str, stem: str, count: int) -> Path:
        file = tmp_path / name
        file.write_text("".join(f"{stem}a{n} {stem}b{n} {stem}c{n}.\n" for n in range(count)))
        return file

    files = [numbered("train.txt", "x", 500)]
    report = check_corpus(files, "text", held_out=[numbered("dev.txt", "y", 50)])
    assert "0% of their words occur in the training text" in next(
        finding.description for finding in report.findings if finding.kind == "held_out"
    )
    assert not check_corpus(files, "text", held_out=[numbered("same.txt", "x", 50)]).count("held_out")


def test_different_sets_in_one_pair_are_refused_with_both_counts(train: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"60 lines but .* has 20: .* or a model learns wrong translations"):
        check_corpus([train[0], write(tmp_path, "dev.de", GERMAN, 20)], "pairs")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["I &apos;m here", "a &amp; b", "&#91; x"], "escaped"),
        (["i 'm here .", "do n't go , please", "well - known @-@ x"], "tokenized"),
    ],
)
def test_text_prepared_for_other_toolkits_is_reported(lines: list[str], kind: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n".join(lines) + "\nA plain line, with a stop.\n")
    report = check_corpus([file], "text")
    assert report.lines(kind) == (1, 2, 3)
    assert any("the model learns" in str(issue) for issue in data_issues(report, {}, {}))
    plain = tmp_path / "plain.txt"
    plain.write_text("He said: wait ... then left.\nWhere is it ? Là !\nR&D; AT&T, x.\n" * 9)
    report = check_corpus([plain], "text")
    assert report.count("escaped") == report.count("tokenized") == 0
