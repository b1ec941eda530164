"""The doctor finds planted issues at their lines, and nothing else."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import typer
from typer.testing import CliRunner

from heedful.cli.doctor import doctor
from heedful.data.corpus_doctor import examine
from heedful.data.corpus_readers import read_documents, read_pairs
from heedful.data.corpus_statistics import CHUNK_ROWS
from heedful.data.unicode_scripts import SCRIPTS, scripts_of
from heedful.errors import DataError, UsageError
from heedful.training.reporting.events import Events

WORDS = "the old house stands near a quiet river where many children play every summer"
GERMAN = "das alte Haus steht an einem ruhigen Fluss wo viele Kinder jeden Sommer spielen"


def sentences(count: int, words: str, seed: int) -> list[str]:
    """Different sentences of much the same length."""
    random = Random(seed)
    return [" ".join(random.sample(words.split(), 9)) + f" {number}." for number in range(count)]


@pytest.fixture
def planted(tmp_path: Path) -> list[Path]:
    """Some 3,000 clean pairs with one or two issues of each kind at known lines."""
    source, target = sentences(3000, WORDS, 1), sentences(3000, GERMAN, 2)
    source[9], target[9] = source[4], target[4]  # line 10: the pair of line 5 again
    source[19] = source[4]  # line 20: the source of line 5, another target
    target[29] = ""  # line 30: blank
    target[39] = source[39].upper()  # line 40: left untranslated
    target[49] = "@@"  # line 50: far too short
    source[1999] = " ".join(source[100:106])  # line 2000: far too long
    target[2499] = "Старый дом стоит у тихой реки, где играют дети."  # line 2500: another script
    files = [tmp_path / "train.en", tmp_path / "train.de"]
    for file, lines in zip(files, (source, target), strict=True):
        file.write_bytes("".join(line + "\n" for line in lines).encode())
    with files[1].open("rb") as file:
        lines = file.read().split(b"\n")
    lines[59] = b"Stra\xdfe " + lines[59]  # line 60: Latin-1
    lines[69] = b"nul\0" + lines[69]  # line 70
    files[1].write_bytes(b"\n".join(lines))
    return files


EXPECTED = {
    "misaligned": (), "utf-8": (60,), "nul": (70,), "overlong": (), "malformed": (), "blank": (30,),
    "duplicate": (10,), "source": (20,), "copy": (40,), "ratio": (50, 2000), "script": (2500,),
    "escaped": (), "tokenized": (),
}  # fmt: skip


def test_planted_issues_are_found_and_nothing_else(planted: list[Path]) -> None:
    report = examine(planted)
    assert {finding.kind: report.lines(finding.kind) for finding in report.findings} == EXPECTED
    assert {finding.kind: finding.count for finding in report.findings} == {k: len(v) for k, v in EXPECTED.items()}
    assert (report.kind, report.rows, report.usable) == ("pairs", 3000, 2997)
    assert report.findings[1].locations[0].file == str(planted[1])


def test_counts_and_histogram_add_up(planted: list[Path]) -> None:
    report = examine(planted)
    pairs = list(read_pairs(planted, on_bad_line="skip"))
    for side, texts in zip(report.columns, zip(*((p.source, p.target) for p in pairs), strict=True), strict=True):
        lengths = sorted(map(len, texts))
        assert side.characters == sum(lengths)
        assert side.words == sum(len(text.split()) for text in texts)
        assert side.longest == lengths[-1]
        assert side.median in lengths[len(lengths) // 2 - 1 : len(lengths) // 2 + 1]
        assert sum(bar.count for bar in side.histogram) == len(texts)
        bars = [(bar.count, sum(bar.low <= length <= bar.high for length in lengths)) for bar in side.histogram]
        assert all(counted == true for counted, true in bars)
        assert side.script == "Latin"


def test_clean_copy_has_no_issues_and_counts_what_was_dropped(planted: list[Path], tmp_path: Path) -> None:
    report = examine(planted, clean_copy=tmp_path / "out")
    assert report.cleaned is not None
    lost = {"utf-8": 1, "nul": 1, "blank": 1, "duplicate": 1, "copy": 1, "ratio": 2, "script": 1}
    assert report.cleaned.dropped == lost
    assert report.cleaned.kept == 3000 - sum(lost.values())
    copies = [tmp_path / "out" / name for name in report.cleaned.files]
    assert [copy.name for copy in copies] == ["train.en", "train.de"]
    again = examine(copies)
    assert {finding.kind for finding in again.findings if finding.count} == {"source"}
    assert again.usable == again.rows == report.cleaned.kept
    gone = {line for kind, lines in EXPECTED.items() if kind != "source" for line in lines}
    kept = [pair[:2] for pair in read_pairs(planted, on_bad_line="skip") if pair.line not in gone]
    assert [pair[:2] for pair in read_pairs(copies)] == kept


def test_leaks_are_found_and_dropped(planted: list[Path], tmp_path: Path) -> None:
    lines = [file.read_bytes().split(b"\n") for file in planted]
    held_out = [tmp_path / "test.en", tmp_path / "test.de", tmp_path / "more.tsv"]
    for file, side in zip(held_out, lines, strict=False):
        file.write_bytes(side[100] + b"\n" + b"unseen, all new here\n")
    held_out[2].write_bytes(lines[0][200] + b"\tein anderes Ziel\n")
    report = examine(planted, clean_copy=tmp_path / "out", against=held_out)
    assert report.lines("leak") == (101, 201)
    assert "2 of 3" in next(finding.description for finding in report.findings if finding.kind == "leak")
    assert report.cleaned is not None
    assert report.cleaned.dropped["leak"] == 2
    assert examine([tmp_path / "out/train.en", tmp_path / "out/train.de"], against=held_out).count("leak") == 0


def test_misaligned_files_are_reported_but_not_cleaned(tmp_path: Path) -> None:
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    files[0].write_text("one\ntwo\nthree\nfour\n")
    files[1].write_text("eins\nzwei\n")
    report = examine(files)
    finding = report.findings[0]
    assert (finding.kind, finding.count, report.usable) == ("misaligned", 1, 2)
    assert "4 lines" in finding.description
    assert "has 2" in finding.description
    with pytest.raises(DataError, match=r"4 lines but .* has 2"):
        examine(files, clean_copy=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_running_text_is_counted_by_line_and_document(tmp_path: Path) -> None:
    line = "A line that is long enough to be no accident when it comes twice.\n"
    (tmp_path / "a.txt").write_text(f"Chapter I.\n\n{line}Chapter I.\n{line}")
    (tmp_path / "b.txt").write_bytes(f"{line}short\n".encode() + b"\xff\n")
    report = examine([tmp_path])
    assert (report.kind, report.documents, report.rows, report.usable) == ("text", 2, 8, 6)
    assert report.count("blank") == 1
    locations = {f.kind: [(Path(p.file).name, p.line) for p in f.locations] for f in report.findings if f.count}
    assert locations == {"blank": [("a.txt", 2)], "utf-8": [("b.txt", 3)], "duplicate": [("a.txt", 5), ("b.txt", 1)]}


def test_clean_copy_of_prose_drops_only_unreadable_lines(tmp_path: Path) -> None:
    line = "A line that is long enough to be no accident when it comes twice.\n"
    text = f"{line}\n  indented\n{line}end\n"
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\xff\r\n")
    report = examine([tmp_path / "in.txt"], clean_copy=tmp_path / "out")
    assert (tmp_path / "out/in.txt").read_bytes() == text.encode()
    assert report.cleaned is not None
    assert report.cleaned.dropped == {"utf-8": 1}


@pytest.mark.parametrize("name", ["p.tsv", "p.csv.gz", "p.jsonl.xz"])
def test_clean_copy_keeps_the_table_format(name: str, tmp_path: Path) -> None:
    rows = list(zip(sentences(50, WORDS, 3), sentences(50, GERMAN, 4), strict=True))
    rows.append(rows[0])
    if "csv" in name:
        rows[7] = ('two\nlines, "quoted" words in one cell', 'zwei\nZeilen, "Worte" in einem Feld')
    plain = tmp_path / name.removesuffix(".gz").removesuffix(".xz")
    with plain.open("w", newline="") as file:
        for row in rows:
            if "csv" in name:
                csv.writer(file).writerow(row)
            else:
                text = (
                    "\t".join(row) if "tsv" in name else json.dumps(dict(zip(("source", "target"), row, strict=True)))
                )
                file.write(text + "\n")
    first = examine([plain], clean_copy=tmp_path / "one")
    assert first.cleaned is not None
    assert (first.cleaned.kept, first.cleaned.dropped) == (50, {"duplicate": 1})
    assert [pair[:2] for pair in read_pairs([tmp_path / "one" / plain.name])] == rows[:50]


def test_clean_copy_of_quoted_tabs_and_newlines_has_as_many_rows(tmp_path: Path) -> None:
    rows = [("en", "de"), ("one\ttab", "two\nlines"), *[(f"a house {n}", f"ein Haus {n}") for n in range(20)]]
    with (tmp_path / "in.tsv").open("w", newline="") as stream:
        csv.writer(stream, "excel-tab", quoting=csv.QUOTE_ALL).writerows(rows)
    examine([tmp_path / "in.tsv"], clean_copy=tmp_path / "out")
    assert next(read_pairs([tmp_path / "out" / "in.tsv"]))[:2] == ("one tab", "two lines")
    assert examine([tmp_path / "out" / "in.tsv"]).usable == 21


def test_clean_copy_drops_duplicate_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "one"}\n{"text": ""}\n{broken\n')
    report = examine([path], clean_copy=tmp_path / "out")
    assert report.cleaned is not None
    assert report.cleaned.dropped == {"malformed": 1, "blank": 1, "duplicate": 1}
    assert list(read_documents([tmp_path / "out/a.jsonl"])) == [("one", True), ("two", True)]


def test_equal_file_names_keep_their_folders(tmp_path: Path) -> None:
    for side, text in (("en", "one house\n"), ("de", "ein Haus\n")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.txt").write_text(text)
    examine([tmp_path / "en/train.txt", tmp_path / "de/train.txt"], clean_copy=tmp_path / "out")
    assert (tmp_path / "out/de/train.txt").read_text() == "ein Haus\n"


def test_existing_files_are_not_overwritten(planted: list[Path], tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        examine(planted, clean_copy=full)
    assert [file.name for file in full.iterdir()] == ["mine"]
    with pytest.raises(UsageError, match="is a file"):
        examine(planted, clean_copy=full / "mine")
    with pytest.raises(UsageError, match="cannot be written"):
        examine(planted, clean_copy=full / "mine" / "below")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_duplicates_are_found_across_chunks(tmp_path: Path) -> None:
    lines = sentences(2 * CHUNK_ROWS + 1, WORDS, 5)
    lines[CHUNK_ROWS] = lines[CHUNK_ROWS - 1]
    lines[2 * CHUNK_ROWS] = lines[0]
    (tmp_path / "a.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    assert examine([tmp_path / "a.tsv"]).lines("duplicate") == (CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 1)


def test_script_is_that_of_most_letters() -> None:
    import numpy as np

    texts = ["plain", "Grüße", "Привет мир", "日本語のテキスト", "123 …", "العربية", "Ελλάδα Ok", "한국어", "हिन्दी"]
    names = ["Latin", "Latin", "Cyrillic", "Han or kana", "none", "Arabic", "Greek", "Hangul", "Devanagari"]
    scripts = scripts_of(texts, np.array([len(text) for text in texts]))
    assert [SCRIPTS[script] for script in scripts] == names


def test_mixed_scripts_are_not_an_issue(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one house\tОдин дом\ntwo houses\tein Haus\n" * 1)
    assert examine([tmp_path / "a.tsv"]).columns[1].script == "mixed"
    assert examine([tmp_path / "a.tsv"]).count("script") == 0


def run(*arguments: object) -> tuple[str, BaseException | None]:
    app = typer.Typer()
    app.command()(doctor)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.output, result.exception


def test_command_prints_counts_lines_and_a_histogram(planted: list[Path]) -> None:
    output, error = run(*planted)
    assert error is None
    for shown in ("3,000 pairs", "2,997 usable", "█", "32–63", "lines that are not UTF-8", "50, 2000", "Latin"):
        assert shown in output


def test_command_prints_json_and_writes_a_clean_copy(planted: list[Path], tmp_path: Path) -> None:
    output, error = run(
        *planted, "--json", "--write", tmp_path / "out", "--against", planted[0], "--against", planted[1]
    )
    assert error is None
    report = json.loads(output)
    assert report["usable"] == 2997
    assert Counter({f["kind"]: f["count"] for f in report["findings"]})["leak"] == 2997
    assert report["cleaned"]["kept"] == 0


def test_command_can_stop_at_the_first_bad_line(planted: list[Path]) -> None:
    _, error = run(*planted, "--on-bad-line", "fail")
    assert isinstance(error, DataError)
    assert error.exit_code == 3
    assert f"{planted[1]}:60: byte offset" in str(error)


def test_every_pass_reports_progress(planted: list[Path], tmp_path: Path) -> None:
    events: list[dict[str, object]] = []
    held_out = [tmp_path / "test.en", tmp_path / "test.de"]
    for file in held_out:
        file.write_text("something else\n")
    examine(planted, clean_copy=tmp_path / "out", against=held_out, start_progress=Events(events.append).stage)
    ends = [(event["name"], event["completed"]) for event in events if event["ended"]]
    size = sum(file.stat().st_size for file in planted)
    assert ends == [("reading held-out files", 30), ("reading", size), ("writing", size)]


def test_multi30k_has_few_issues(corpora: Path) -> None:
    folder = corpora / "multi30k"
    against = [folder / f"{part}.{side}" for part in ("val", "test_2016_flickr") for side in ("en", "de")]
    report = examine([folder / "train.en", folder / "train.de"], against=against)
    assert report.usable == 29_000
    assert report.lines("ratio") == (16510, 16664)  # their German side is "@@"
    assert report.lines("leak") == (4750,)
    assert report.count("duplicate") == 3


def test_words_are_not_counted_in_text_without_spaces(tmp_path: Path) -> None:
    files = [tmp_path / "a.en", tmp_path / "a.zh"]
    files[0].write_text("I am a student.\nThe cat sat.\n")
    files[1].write_text("我是学生。\n猫坐下了。\n", encoding="utf-8")
    assert [column.words for column in examine(files).columns] == [7, None]
