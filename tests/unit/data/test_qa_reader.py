"""Readers of questions: formats, and the messages for bad records."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from heedful.data.line_reader import BadLine, read_text_file
from heedful.data.qa_reader import Question, ReferenceAnswer, read_questions, scan_questions
from heedful.errors import DataError

PASSAGE = "Ada wrote the first program in 1843. Ada lived in London."


def squad(*questions: dict[str, Any], context: Any = PASSAGE) -> str:
    return json.dumps(
        {"version": "2.0", "data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": questions}]}]}
    )


def question(answer: str | None = "1843", start: Any = 31, **more: Any) -> dict[str, Any]:
    answers = [] if answer is None else [{"text": answer, "answer_start": start}]
    return {"id": "q1", "question": "When?", "answers": answers, **more}


def only(path: Path) -> Question | BadLine:
    (row,) = scan_questions([path])
    return row


def test_squad_1_and_2_are_read(tmp_path: Path) -> None:
    file = tmp_path / "squad.json"
    impossible = question(None, id="q2", is_impossible=True, plausible_answers=[{"text": "x", "answer_start": 0}])
    file.write_text(squad(question(), impossible))
    one, other = scan_questions([file])
    assert one == Question(PASSAGE, "When?", (ReferenceAnswer("1843", 31),), "q1", file, 1)
    assert isinstance(other, Question)
    assert (other.id, other.answers) == ("q2", ())
    packed = tmp_path / "squad.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert [row.id for row in read_questions([packed])] == ["q1", "q2"]


@pytest.mark.parametrize(
    "record",
    [
        {"passage": PASSAGE, "question": "When?", "answer": "1843"},
        {"context": PASSAGE, "question": "When?", "answer": "1843", "answer_start": 31},
        {"context": PASSAGE, "question": "When?", "answers": {"text": ["1843"], "answer_start": [31]}},
        {"context": PASSAGE, "question": "When?", "answers": [{"text": "1843", "answer_start": 31}]},
        {"passage": PASSAGE, "question": "When?", "answers": ["1843"]},
    ],
)
def test_every_form_of_record_gives_the_same_question(tmp_path: Path, record: dict[str, Any]) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(json.dumps(record) + "\n")
    row = only(file)
    assert isinstance(row, Question)
    assert row.answers == (ReferenceAnswer("1843", 31),)


def test_blank_answer_of_a_table_is_unanswerable(tmp_path: Path) -> None:
    file = tmp_path / "asked.csv"
    file.write_text(f'passage,question,answer\n"{PASSAGE}",When?,1843\n"{PASSAGE}",Why?,\n')
    assert [row.answers for row in read_questions([file])] == [(ReferenceAnswer("1843", 31),), ()]
    other = tmp_path / "other.tsv"
    other.write_text("text\tanswer\nx\ty\n")
    with pytest.raises(DataError, match="no column 'passage'; columns found: 'text', 'answer'"):
        list(read_questions([other]))


@pytest.mark.parametrize(
    ("record", "kind", "message"),
    [
        (question("1844"), "span", "the answer '1844' is not in its passage at character 31, nor anywhere else"),
        (question("1843", 30), "span", "the answer '1843' is not in its passage at character 30, but at 31"),
        (question("1843", -26), "span", "at character -26, but at 31"),
        (question("1843", "soon"), "malformed", "'answer_start' must be a whole number, got 'soon'"),
        (question("1843", True), "malformed", "'answer_start' must be a whole number, got True"),
        (question("  ", 3), "malformed", "an answer is blank"),
        (question(is_impossible=True), "malformed", "'is_impossible' is true, but there is an answer"),
        ({"id": "q1", "answers": []}, "malformed", "'question' is missing"),
        ({"id": "q1", "question": "When?"}, "malformed", "'answers' is missing"),
        ({"id": "q1", "question": "When?", "answers": [{"text": "1843"}]}, "malformed", "'answer_start' of an answer"),
        ({"id": "q1", "question": "When?", "answers": [7]}, "malformed", "an answer must be an object"),
        (question(question="a\x00b"), "malformed", "'question' contains a NUL"),
        (question(question="  "), "blank", "the question is blank"),
        ("no object", "malformed", "'question' is missing"),
    ],
)
def test_bad_question_is_reported_with_its_location(tmp_path: Path, record: Any, kind: str, message: str) -> None:
    file = tmp_path / "squad.json"
    file.write_text(squad(record))
    row = only(file)
    assert isinstance(row, BadLine)
    assert row.kind == kind
    assert message in row.message
    assert "data[0].paragraphs[0].qas[0]" in row.message
    assert "'q1'" in row.message or record == "no object"


def test_wrong_span_raises_or_is_dropped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "squad.json"
    file.write_text(squad(question(), question("1844", id="q2")))
    with pytest.raises(DataError, match=r"question 'q2'.*'1844' is not in its passage"):
        list(read_questions([file]))
    dropped: Counter[str] = Counter()
    assert [row.id for row in read_questions([file], on_bad_line="skip", dropped=dropped)] == ["q1"]
    assert dropped == {"span": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has no list 'data'"),
        ('{"data": {}}', "has no list 'data'"),
        ('{"data": [{}]}', r"data\[0\]: 'paragraphs' is missing"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', r"data\[0\].paragraphs\[0\]: 'qas' is missing"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "'context' is missing"),
        ('{"data": []}', "no usable question"),
        ("", "is empty"),
    ],
)
def test_other_json_raises_with_what_is_missing(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "squad.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_questions([file]))


def test_compressed_file_beyond_the_limit_raises(tmp_path: Path) -> None:
    bomb = tmp_path / "squad.json.gz"
    bomb.write_bytes(gzip.compress(b" " * 3_000_000))
    with pytest.raises(DataError, match="longer than 1,000,000 bytes \\(decompressed\\)"):
        read_text_file(bomb, limit=1_000_000)


def test_invalid_utf8_is_reported_with_its_offset(tmp_path: Path) -> None:
    file = tmp_path / "squad.json"
    file.write_bytes(b'{"data": "\xff"}')
    with pytest.raises(DataError, match=r"byte offset 10: 0xff is not UTF-8: convert text"):
        list(read_questions([file]))
    plain = tmp_path / "plain.txt"
    plain.write_text("words")
    with pytest.raises(DataError, match=r"come as .json \(SQuAD\), .jsonl, .tsv, .csv or"):
        list(read_questions([plain]))
