"""The check before training: what is dropped, and what is kept but reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data import quick_check
from heedful.data.quick_check import check_corpus, data_issues, doctor_command
from heedful.errors import DataError


def write(folder: Path, name: str, lines: list[str]) -> Path:
    file = folder / name
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    source = [f"this is sentence number {number} of them all" for number in range(200)]
    target = [f"dies ist der Satz Nummer {number} von allen" for number in range(200)]
    source[9], target[9] = source[4], target[4]
    target[19] = source[19]
    target[29] = "?"
    target[39] = ""
    target[49] = "Это предложение номер пятьдесят из всех"
    return [write(tmp_path, "a.en", source), write(tmp_path, "a.de", target)]


def test_each_issue_is_reported_with_its_count_and_first_location(pair: list[Path], tmp_path: Path) -> None:
    test = [write(tmp_path, "t.en", ["this is sentence number 7 of them all"]), write(tmp_path, "t.de", ["egal"])]
    report = check_corpus(pair, "pairs", held_out=test)
    too_long = "pairs longer than 9 tokens"
    assert [str(issue) for issue in data_issues(report, {"blank": 1, too_long: 3}, {too_long: 8})] == [
        "1 blank line (dropped), first at a.de:40",
        "3 pairs longer than 9 tokens (dropped), first at a.en:8",
        "1 duplicate pair (kept), first at a.en:10",
        "1 pair whose source is also held out, 1 of 1 held-out texts (kept), first at a.en:8",
        "1 untranslated target, equal to its source (kept), first at a.en:20",
        "1 pair with an unusual length ratio (kept), first at a.en:30",
        "1 pair with a side in an unexpected script (kept), first at a.en:50",
    ]
    assert report.usable == 199
    more = doctor_command(report, pair, test)
    assert more == f"heedful doctor {pair[0]} {pair[1]} --against {test[0]} --against {test[1]}"


def test_clean_text_has_no_issues(tmp_path: Path) -> None:
    text = write(tmp_path, "a.txt", ["A line of text.", "", "Another line of it."])
    report = check_corpus([text], "text")
    assert data_issues(report, {}, {}) == ()
    assert (report.documents, report.characters) == (1, len(text.read_text()))


def test_beyond_max_measured_rows_are_only_counted(pair: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [file.read_text() for file in pair]
    for file, text in zip(pair, lines, strict=True):
        file.write_text(text * 20)
    full = check_corpus(pair, "pairs")
    monkeypatch.setattr(quick_check, "MAX_MEASURED", 1500)
    part = check_corpus(pair, "pairs")
    assert (part.usable, part.characters) == (full.usable, full.characters) == (199 * 20, full.characters)
    assert part.measured < part.usable
    beyond = part.usable - part.measured
    assert str(data_issues(part, {}, {})[-1]) == f"{beyond:,} rows after the first {part.measured:,} (not examined)"
    assert part.count("duplicate") < full.count("duplicate")


def test_doctor_command_reads_files_as_training_does(tmp_path: Path) -> None:
    books = [write(tmp_path, name, ["the same long line of text, which comes in both"]) for name in ("a.txt", "b.txt")]
    assert doctor_command(check_corpus(books, "text"), books, ()).endswith("--as text")


def test_unusable_files_raise_data_error(pair: list[Path], tmp_path: Path) -> None:
    short = write(tmp_path, "short.de", ["one"])
    with pytest.raises(DataError, match=r"200 lines but .* has 1"):
        check_corpus([pair[0], short], "pairs", on_bad_line="skip")
    with pytest.raises(DataError, match="as source and as target"):
        check_corpus([pair[0], pair[0]], "pairs")
    with pytest.raises(DataError, match=r"200 lines but .* has 1"):
        check_corpus(pair, "pairs", held_out=[pair[0], short])
