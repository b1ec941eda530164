"""Which rows and columns of a table are read: sniffed separators, headers by evidence, columns by name or number."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from babel import Locale

from heedful.data.column_names import is_header, language, pair_columns
from heedful.data.corpus_doctor import detect_corpus_kind, examine
from heedful.data.corpus_readers import read_documents, read_pairs
from heedful.data.labeled_reader import read_labeled
from heedful.data.qa_reader import read_questions
from heedful.errors import DataError

PAIRS = [(f"The house has {n} rooms, and a door.", f"La casa tiene {n} cuartos; y una puerta.") for n in range(62)]


def write(folder: Path, name: str, rows: list[tuple[str, ...]], separator: str = "\t") -> Path:
    file = folder / name
    file.write_text("".join(separator.join(row) + "\n" for row in rows), encoding="utf-8")
    return file


def pairs(file: Path, columns: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs([file], columns=columns)]


@pytest.mark.parametrize(
    ("name", "separator"),
    [("a.txt", "\t"), ("a.tsv", "\t"), ("a.csv", "\t"), ("a.tsv", "|"), ("a.csv", "|"), ("a.en-es", "\t")],
)
@pytest.mark.parametrize("header", [(), ("en", "es", "by"), ("English", "Spanish", "by"), ("source", "target", "by")])
def test_separators_and_headers_are_sniffed(name: str, separator: str, header: tuple[str, ...], tmp_path: Path) -> None:
    rows = [(*pair, f"CC-BY 2.0 (France) #{n}") for n, pair in enumerate(PAIRS)]
    assert pairs(write(tmp_path, name, [*([header] if header else []), *rows], separator)) == PAIRS


def test_semicolons_cut_a_csv_whose_text_has_commas(tmp_path: Path) -> None:
    rows = [(f"One, two {n}", f"Uno, dos {n}") for n in range(30)]
    assert pairs(write(tmp_path, "a.csv", rows, ";")) == rows


def test_header_of_languages_over_62_rows_gives_62_pairs(tmp_path: Path) -> None:
    rows = [("en", "es"), *[(f"{n} dogs", f"{n} perros") for n in range(62)]]
    assert pairs(write(tmp_path, "a.csv", rows, ",")) == rows[1:]


@pytest.mark.parametrize(
    "first",
    [
        ("Hi", "Hallo"),
        ("No", "Nein"),
        ("go", "geh"),
        ("Text", "Text"),
        ("English", "Englisch"),
        ("no", "no"),
        ("5", "6"),
        ("Ω", "ohmio"),
        ("Café", "Café"),
        ("A", "Un"),
    ],
)
def test_first_row_of_data_is_never_a_header(first: tuple[str, str], tmp_path: Path) -> None:
    assert pairs(write(tmp_path, "a.tsv", [first, *PAIRS]))[0] == first


@pytest.mark.parametrize(
    "first",
    [
        ("Phrase source", "Phrase cible"),
        ("Zin", "Setning"),
        ("English words/sentences", "French words/sentences"),
        ("English (US)", "Portuguese (BR)"),
        ("English:", "Spanish:"),
        ("text1", "text2"),
        ("0", "1"),
    ],
)
def test_first_row_of_words_in_no_sentence_of_a_csv_is_a_header(first: tuple[str, str], tmp_path: Path) -> None:
    assert pairs(write(tmp_path, "a.csv", [first, *PAIRS], "|")) == PAIRS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize(
    "header",
    [
        ("英文", "泰文"),
        ("英语句子", "泰语句子"),
        ("ภาษาอังกฤษ", "ภาษาไทย"),
        ("Оригинал", "Перевод"),
        ("원문", "번역문"),
        ("Kaynak", "Hedef"),
        ("文一", "文二"),
        ("V1", "V2"),
        ("A", "B"),
        ("_c0", "_c1"),
    ],
)
def test_headers_of_other_languages_above_names_are_not_examples(
    name: str, header: tuple[str, str], tmp_path: Path
) -> None:
    english, thai = Locale("en").territories, Locale("th").territories
    rows = [(english[code], thai[code]) for code in sorted({*english} & {*thai}) if "," not in english[code]][:80]
    assert pairs(write(tmp_path, name, [header, *rows], "\t" if name == "a.tsv" else ",")) == rows


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("inside", ['"Yes", he said.', "two\nlines", "a\ttab"])
def test_quoted_cells_of_a_tsv_are_read_as_written(quoting: Any, inside: str, tmp_path: Path) -> None:
    rows = [(inside, "Sí.") if number % 9 == 5 else pair for number, pair in enumerate(PAIRS)]
    with (tmp_path / "a.tsv").open("w", newline="") as stream:
        csv.writer(stream, "excel-tab", quoting=quoting, lineterminator="\n").writerows([("en", "es"), *rows])
    assert pairs(tmp_path / "a.tsv") == rows


def test_quotes_of_a_tsv_without_quoting_are_text(tmp_path: Path) -> None:
    rows = [('"Yes," he said.', '"Sí"'), *PAIRS, ('"No."', '"No')]
    assert pairs(write(tmp_path, "a.tsv", rows)) == rows


@pytest.mark.parametrize("number", ["Nr.", "No.", "#", "№"])
def test_header_above_numbers_needs_no_letters_and_numbers_are_never_a_side(number: str, tmp_path: Path) -> None:
    rows = [(number, "Sprache eins", "Sprache zwei"), *[(str(n), *pair) for n, pair in enumerate(PAIRS)]]
    assert pairs(write(tmp_path, "a.csv", rows, "|")) == PAIRS
    rows[0] = ("1", *rows[0][1:])
    assert pairs(write(tmp_path, "a.tsv", rows))[1:] == PAIRS


@pytest.mark.parametrize(
    ("preamble", "name", "separator"),
    [
        ("sep=;\n", "a.csv", ";"),
        ("sep=|\n", "a.csv", "|"),
        ("#separator:tab\n#html:true\n#columns:Front\tBack\n", "a.txt", "\t"),
        ("# The houses, by room\n", "a.tsv", "\t"),
    ],
)
@pytest.mark.parametrize("header", [(), ("English", "Spanish")])
def test_lines_above_a_table_are_left_out(
    preamble: str, name: str, separator: str, header: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [pair if separator != ";" else (pair[0], pair[1].replace(";", ",")) for pair in PAIRS]
    file = write(tmp_path, name, [*([header] if header else []), *rows], separator)
    file.write_text(preamble + file.read_text())
    assert pairs(file) == rows
    assert examine([file]).usable == len(rows)
    first = next(read_pairs([file]))
    assert first.line == preamble.count("\n") + bool(header) + 1


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.en-es"])
def test_sides_are_separated_by_three_bars(name: str, tmp_path: Path) -> None:
    rows = [(source, target.replace(";", ",")) for source, target in PAIRS]
    assert pairs(write(tmp_path, name, rows, " ||| ")) == rows


def test_word_list_may_begin_with_words_that_are_codes() -> None:
    words = [[f"wort{n}", f"palabra{n}"] for n in range(30)]
    assert not is_header(["it", "es"], words)
    assert is_header(["en", "es"], words)
    assert is_header(["it", "es"], [[f"una frase {n}", f"una frase {n}"] for n in range(30)])


def test_doubtful_header_is_reported_and_read_as_one_by_name(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", [("Fráze", "Setning"), *PAIRS])
    report = examine([file])
    assert report.usable == 63
    assert report.lines("header") == (1,)
    assert "--columns fráze,setning" in next(
        finding.description for finding in report.findings if finding.kind == "header"
    )
    assert pairs(file, ("fráze", "setning")) == PAIRS


def test_columns_of_numbers_codes_and_addresses_are_not_text(tmp_path: Path) -> None:
    rows = [(str(1000 + n), "eng", *pair, f"https://tatoeba.org/{n}") for n, pair in enumerate(PAIRS)]
    assert pairs(write(tmp_path, "a.tsv", rows)) == PAIRS


def test_columns_are_requested_by_name_or_number(tmp_path: Path) -> None:
    rows = [("nl", "en", "es"), *[("een huis", *pair) for pair in PAIRS]]
    file = write(tmp_path, "a.tsv", rows)
    assert pairs(file, ("en", "es")) == pairs(file, ("2", "3")) == PAIRS
    assert pairs(file, ("es", "en")) == [pair[::-1] for pair in PAIRS]
    with pytest.raises(DataError, match=r"columns found: 'nl', 'en', 'es'; name two of them"):
        pairs(file)
    with pytest.raises(DataError, match="has no column 'fr'; columns found: 'nl', 'en', 'es'"):
        pairs(file, ("en", "fr"))
    with pytest.raises(DataError, match="has no column 4: it has 3 columns"):
        pairs(file, ("1", "4"))
    with pytest.raises(DataError, match="two different columns, got"):
        pairs(file, ("en",))
    lines = [write(tmp_path, name, [("one",)]) for name in ("a.en", "a.es")]
    with pytest.raises(DataError, match=r"columns.*1,2.*: there are no columns in .*a\.en"):
        examine(lines, columns=("1", "2"))


@pytest.mark.parametrize(
    "record",
    [
        lambda a, b: {"en": a, "es": b, "id": "x"},
        lambda a, b: {"translation": {"en": a, "es": b}, "id": "x"},
        lambda a, b: {"src": a, "tgt": b, "score": 0.5},
        lambda a, b: {"text_en": a, "text_es": b},
        lambda a, b: {"id": 7, "data": {"src": {"text": a}, "tgt": {"text": b}}},
        lambda a, b: {"id": "x", "Source text": a, "Target text": b},
    ],
)
def test_parallel_records_are_read_by_languages_or_sides(record: object, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(record(*pair)) + "\n" for pair in PAIRS))  # type: ignore[operator]
    assert pairs(file) == PAIRS
    assert detect_corpus_kind([file]) == "pairs"


def test_every_task_reads_requested_columns(tmp_path: Path) -> None:
    rows = [("verdict", "what"), *[("good" if n % 2 else "bad", f"text {n}") for n in range(40)]]
    file = write(tmp_path, "a.txt", rows)
    labeled = list(read_labeled([file], columns=("2", "1")))
    assert len(labeled) == 40
    assert (labeled[0].texts, labeled[0].labels) == (("text 0",), ("bad",))
    assert [text for text, _ in read_documents([file], columns=("what",))][:2] == ["text 0", "text 1"]
    answered = write(tmp_path, "b.csv", [("p", "q", "a"), ("Rome is old.", "Is Rome old?", "old")], ",")
    (question,) = read_questions([answered], columns=("p", "q", "a"))
    assert (question.passage, question.answers[0].text) == ("Rome is old.", "old")


def test_several_tables_are_read_in_turn_and_aligned_text_stays_aligned(tmp_path: Path) -> None:
    files = [write(tmp_path, "a.txt", PAIRS[:30]), write(tmp_path, "b.tsv", [("en", "es"), *PAIRS[30:]])]
    assert [(pair.source, pair.target) for pair in read_pairs(files)] == PAIRS
    sides = [write(tmp_path, f"c.{side}", [(pair[side],) for pair in PAIRS]) for side in (0, 1)]
    assert [(pair.source, pair.target) for pair in read_pairs(sides)] == PAIRS
    with pytest.raises(DataError, match="pairs come as two line-aligned text files, or"):
        list(read_pairs([files[0], sides[0]]))


def test_files_that_hold_no_pairs_are_refused_with_a_hint(tmp_path: Path) -> None:
    records = write(tmp_path, "a.json", [('[{"en": "a", "es": "b"}]',)])
    with pytest.raises(DataError, match=r"one object a line to a \.jsonl"):
        pairs(records)
    with pytest.raises(DataError, match=r"semicolons or bars separate them, name the file \.csv"):
        pairs(write(tmp_path, "a.txt", [("a", "b")], ";"))
    with pytest.raises(DataError, match=r"b\.txt: no such file"):
        pairs(tmp_path / "b.txt")
    messages = write(tmp_path, "a.jsonl", [('{"messages": [{"content": "a"}]}',)])
    with pytest.raises(DataError, match=r"columns found: 'messages'; name"):
        pairs(messages)


def test_row_of_another_width_is_an_error_even_if_it_comes_first(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", [("lost", "two", "three"), *PAIRS])
    with pytest.raises(DataError, match=r"a\.tsv:1: 3 columns instead of 2"):
        pairs(file)


def test_patterns_name_files_of_running_text(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(f"{name}\n")
    assert [text for text, _ in read_documents([tmp_path / "*.txt"])] == ["a.txt\n", "b.txt\n"]
    (tmp_path / "part.d").mkdir()
    (tmp_path / "part.d" / "d.txt").write_text("d.txt\n")
    assert [text for text, _ in read_documents([tmp_path / "*"])] == ["a.txt\n", "b.txt\n", "c.md\n"]
    assert [text for text, _ in read_documents([tmp_path / "part.*"])] == ["d.txt\n"]
    with pytest.raises(DataError, match=r"\*\.tex matches no files"):
        list(read_documents([tmp_path / "*.tex"]))


def test_languages_of_column_names() -> None:
    names = {
        "en": "en",
        "deu": "de",
        "pt-BR": "pt",
        "English": "en",
        "text_fr": "fr",
        "Französisch": "fr",
        "中文": "zh",
    }
    assert {name: language(name) for name in names} == names
    assert not any(map(language, ("Hello", "id_1", "Hi", "score", "sentence")))
    assert pair_columns(["id", "en", "de"]) == ("en", "de")
    assert pair_columns(["a", "b", "c"]) is None
