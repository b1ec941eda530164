"""Readers of labeled tables: which columns are used, and the messages for bad rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.data.corpus_doctor import detect_corpus_kind, examine
from heedful.data.labeled_reader import LabeledText, find_columns, read_labeled
from heedful.data.quick_check import check_corpus, data_issues
from heedful.errors import DataError


def table(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("header", "texts", "label", "several"),
    [
        ("text,label", ("text",), "label", False),
        ("label,sentence", ("sentence",), "label", False),
        ("Label,Content,id", ("content",), "label", False),
        ("text_a,text_b,label", ("text_a", "text_b"), "label", False),
        ("premise,hypothesis,gold_label", ("premise", "hypothesis"), "gold_label", False),
        ("review,labels", ("review",), "labels", True),
    ],
)
def test_usual_column_names_are_recognized(
    header: str, texts: tuple[str, ...], label: str, several: bool, tmp_path: Path
) -> None:
    file = table(tmp_path, "a.csv", f"{header}\na,b,c\n")
    assert find_columns(file) == (texts, label, several)


def test_other_column_names_can_be_given_and_are_listed_otherwise(tmp_path: Path) -> None:
    file = table(tmp_path, "a.csv", "verdict,what was said\ngood,hello\n")
    assert [row.texts for row in read_labeled([file], columns=("what was said", "verdict"))] == [("hello",)]
    with pytest.raises(DataError, match=r"no column of texts .* and labels .* found: 'verdict', 'what was said'"):
        find_columns(file)


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [("good, really", "1"), ("bad", "0")]
    files = [
        table(tmp_path, "a.csv", "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows)),
        table(tmp_path, "a.tsv", "label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows)),
        table(tmp_path, "a.jsonl", "".join(json.dumps({"text": t, "label": int(n)}) + "\n" for t, n in rows)),
    ]
    for file in files:
        read = [(row.texts, row.labels) for row in read_labeled([file])]
        assert read == [((text,), (label,)) for text, label in rows]


def test_labels_column_holds_multiple_labels(tmp_path: Path) -> None:
    file = table(tmp_path, "a.tsv", "text\tlabels\na\tred|blue\nb\tred, green\nc\t\nd\tred|red\n")
    assert [row.labels for row in read_labeled([file])] == [("red", "blue"), ("red", "green"), (), ("red",)]
    lists = table(tmp_path, "a.jsonl", '{"text": "a", "labels": ["red", "blue"]}\n{"text": "b", "labels": []}\n')
    assert [row.labels for row in read_labeled([lists])] == [("red", "blue"), ()]


def test_empty_label_raises_with_its_line_or_is_skipped_and_counted(tmp_path: Path) -> None:
    file = table(tmp_path, "a.csv", "text,label\ngood,1\nwhat,\n,0\nbad,0\n")
    with pytest.raises(DataError, match=r"a\.csv:3: the label is empty"):
        list(read_labeled([file]))
    kept = list(read_labeled([file], on_bad_line="skip"))
    assert kept == [LabeledText(("good",), ("1",), file, 2), LabeledText(("bad",), ("0",), file, 5)]
    report = examine([file])
    assert report.kind == "labeled"
    assert (report.count("malformed"), report.count("blank")) == (1, 1)


def test_doctor_counts_labels_and_finds_texts_with_two_labels(tmp_path: Path) -> None:
    rows = ["good,1", "good,1", "bad,0", "good,0", "fine,1"]
    file = table(tmp_path, "a.csv", "text,label\n" + "\n".join(rows) + "\n")
    held_out = table(tmp_path, "dev.csv", "sentence,label\nfine,1\nnew,0\n")
    report = examine([file], against=[held_out])
    assert report.labels == {"1": 3, "0": 2}
    assert (report.count("duplicate"), report.lines("duplicate")) == (1, (3,))
    assert (report.count("source"), report.lines("source")) == (1, (5,))
    assert (report.count("leak"), report.lines("leak")) == (1, (6,))
    assert [side.name for side in report.columns] == ["text"]
    cleaned = examine([file], clean_copy=tmp_path / "clean", against=[held_out]).cleaned
    assert cleaned is not None
    assert cleaned.dropped == {"duplicate": 1, "leak": 1}
    assert (tmp_path / "clean" / "a.csv").read_text() == "text,label\ngood,1\nbad,0\ngood,0\n"


def test_table_is_labeled_only_if_it_has_texts_and_labels(tmp_path: Path) -> None:
    assert detect_corpus_kind([table(tmp_path, "a.csv", "text,label\na,b\n")]) == "labeled"
    assert detect_corpus_kind([table(tmp_path, "b.csv", "text,date\na,b\n")]) == "text"
    assert detect_corpus_kind([table(tmp_path, "c.csv", "source,target\na,b\n")]) == "pairs"


def test_files_with_different_columns_raise_data_error(tmp_path: Path) -> None:
    one = table(tmp_path, "a.csv", "text,label\na,b\n")
    two = table(tmp_path, "b.csv", "text_a,text_b,label\na,b,c\n")
    with pytest.raises(DataError, match=r"b\.csv has text_a and text_b, labeled by label, but .*a\.csv has text"):
        list(read_labeled([one, two]))
    with pytest.raises(DataError, match=r"a\.txt: no such file"):
        list(read_labeled([tmp_path / "a.txt"]))
    (tmp_path / "a.txt").write_text("a text without a label\n")
    with pytest.raises(DataError, match=r"labeled texts come as \.tsv, \.csv, \.jsonl or"):
        list(read_labeled([tmp_path / "a.txt"]))


@pytest.mark.parametrize("header", [(), ("Kategorie", "Beschreibung"), ("v1", "v2")])
@pytest.mark.parametrize("before", [(), ("7",)])
def test_labels_are_sniffed_where_no_name_is_known(
    header: tuple[str, ...], before: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [("spam" if n % 3 else "ham", f"message {n}, as written") for n in range(30)]
    lines = [(*before, *row) for row in rows]
    lines = [(*(["Nr."] if before else []), *header), *lines] if header else lines
    file = table(tmp_path, "a.tsv", "".join("\t".join(line) + "\n" for line in lines))
    assert [(row.labels[0], row.texts[0]) for row in read_labeled([file])] == rows
    assert detect_corpus_kind([file]) == "labeled"
    columns = ("column 3", "column 2") if before else ("column 2", "column 1")
    assert str(find_columns(file)) == "{}, labeled by {}".format(*map(str.casefold, header[::-1] or columns))


@pytest.mark.parametrize("columns", [(), ("1", "2"), ("Sentence!", "my label")])
def test_header_with_a_question_or_exclamation_mark_above_labels_is_no_example(
    columns: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [(f"it is {n} by now .", "good" if n % 3 else "bad") for n in range(30)]
    file = tmp_path / "a.csv"
    lines = ["Sentence!;my label", *map(";".join, rows[:20]), "", *map(";".join, rows[20:])]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    read = read_labeled([file], columns=columns, on_bad_line="skip")
    assert [(row.texts[0], row.labels[0]) for row in read] == rows
    assert examine([file], columns=columns).count("header") == 0


def test_labels_that_differ_only_in_case_are_reported(tmp_path: Path) -> None:
    labels = ["good", "Good", "bad", "good", "GOOD", "good"]
    rows = [f"text {number},{label}\n" for number, label in enumerate(labels)]
    file = table(tmp_path, "a.csv", "text,label\n" + "".join(rows))
    report = check_corpus([file], "labeled")
    assert report.count("label_case") == 2
    (issue,) = data_issues(report, {}, {})
    assert "2 texts whose label differs from another only in case ('good', 'Good', 'GOOD')" in str(issue)
    assert examine([table(tmp_path, "b.csv", "text,label\na,good\nb,bad\n")]).count("label_case") == 0


def test_label_of_the_first_row_only_is_reported_as_perhaps_a_header(tmp_path: Path) -> None:
    rows = [f"It is {n} by now.,{'very good' if n % 3 else 'very bad'}\n" for n in range(30)]
    file = table(tmp_path, "a.csv", "What they said,verdict\n" + "".join(rows))
    report = examine([file], columns=("1", "2"))
    assert report.labels["verdict"] == 1
    assert report.lines("header") == (1,)
    finding = next(finding for finding in report.findings if finding.kind == "header")
    assert "--columns What they said,verdict" in finding.description
    assert examine([file], columns=("what they said", "verdict")).count("header") == 0
    rare = table(tmp_path, "b.csv", "".join(rows[:1]) + "It is late.,awful\n" + "".join(rows[1:]))
    assert examine([rare], columns=("1", "2")).count("header") == 0


def test_pairs_with_a_category_are_not_labeled_texts(tmp_path: Path) -> None:
    lines = [("a" if n % 2 else "b", f"The house {n}.", f"Das Haus {n}.") for n in range(40)]
    file = table(tmp_path, "a.tsv", "".join("\t".join(line) + "\n" for line in lines))
    assert detect_corpus_kind([file]) == "pairs"
    with pytest.raises(DataError, match="has no column of texts"):
        list(read_labeled([file]))


def test_unreadable_forms_of_labeled_text_say_how_to_convert_them(tmp_path: Path) -> None:
    fasttext = table(tmp_path, "a.txt", "__label__ham see you at home\n")
    with pytest.raises(DataError, match="fastText's format: convert it with sed"):
        list(read_labeled([fasttext]))
    records = table(tmp_path, "a.json", '[{"text": "a", "label": "b"}]')
    with pytest.raises(DataError, match=r"one object a line to a \.jsonl"):
        list(read_labeled([records]))
    with pytest.raises(DataError, match="a folder: write one line per text"):
        list(read_labeled([tmp_path]))


@pytest.mark.parametrize("label", ["\x1b[2Jgood", "g" * 1001])
def test_labels_that_cannot_name_a_class_are_refused_with_their_line(label: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"text\tlabel\none\tgood\ntwo\t{label}\n")
    with pytest.raises(DataError, match=r"a.tsv:3: a label is one line of at most 1,000 characters"):
        list(read_labeled([file]))
    assert len(list(read_labeled([file], on_bad_line="skip"))) == 1


def test_many_labels_of_a_text_may_be_long_together(tmp_path: Path) -> None:
    labels = [f"label{number}" for number in range(300)]
    (tmp_path / "a.tsv").write_text(f"text\tlabels\none\t{'|'.join(labels)}\n")
    assert next(read_labeled([tmp_path / "a.tsv"])).labels == tuple(labels)
