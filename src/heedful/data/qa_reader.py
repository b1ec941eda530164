"""Questions about passages as a stream, with the positions of their answers (T5).

    .json                 SQuAD 1.1 and 2.0 (Rajpurkar 2016, 2018): parsed as a whole
    .jsonl                one record per question: passage (or context), question, and answers
    .tsv, .csv            columns passage (or context), question and answer; answer_start if there is one

Columns with other names are requested in the order passage, question, answer, answer_start.

An answer is a span of its passage, given by its text and the character it starts at. Where only the text is given
(records and tables), its first occurrence is meant. A question without answers is unanswerable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from heedful.data.column_names import ANSWER, PASSAGE
from heedful.data.corpus_files import Files, expand_folders
from heedful.data.corpus_readers import ReadOptions, usable_rows
from heedful.data.line_reader import BadLine, read_text_file
from heedful.data.progress import ProgressCallback
from heedful.data.table_layout import is_table, read_layout
from heedful.data.table_reader import check_columns, check_string, scan_named
from heedful.errors import DataError
from heedful.syntax import argument

COLUMN_ORDER = ("passage", "question", "answer", "answer_start")
QUESTION_COLUMNS = ("id", "passage", "question", "answer", "answer_start")
MAX_SHOWN = 60


class ReferenceAnswer(NamedTuple):
    """A reference answer: passage[start : start + len(text)]."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage; unanswerable if it has no answers. In a .json, `line` counts questions."""

    passage: str
    question: str
    answers: tuple[ReferenceAnswer, ...]
    id: str
    path: Path
    line: int


class NotInPassageError(ValueError):
    """An answer is not at its position in the passage."""


def scan_questions(
    files: Files, *, columns: Sequence[str] = (), answered: bool = True, progress: ProgressCallback | None = None
) -> Iterator[Question | BadLine]:
    """Yield every question in order, the unusable ones as `BadLine`. Unless `answered`, answers are not read."""
    for path in expand_folders(files):
        rows = _squad(path, progress) if _is_json(path) else _table(path, columns, answered, progress)
        for row in rows:
            yield row if isinstance(row, BadLine) else _question(path, row, answered)


def read_questions(files: Files, *, columns: Sequence[str] = (), **options: Unpack[ReadOptions]) -> Iterator[Question]:
    """Yield the usable questions."""
    return usable_rows("question", partial(scan_questions, columns=columns), files, **options)


class RawQuestion(NamedTuple):
    """A question as parsed: its line, its path in the file for messages, its passage, and its record."""

    line: int
    location: str
    passage: Any
    record: dict[str, Any]


def _question(path: Path, raw: RawQuestion, answered: bool) -> Question | BadLine:
    name = raw.record.get("id")
    name = str(name) if isinstance(name, str | int) else ""
    location = f"question {name!r:.40} ({raw.location})" if name else raw.location
    try:
        passage, question = check_string("passage", raw.passage), check_string("question", raw.record.get("question"))
        answers = references(raw.record, passage) if answered else ()
    except NotInPassageError as error:
        return BadLine("span", path, raw.line, f"{location}: {error}")
    except ValueError as error:
        return BadLine("malformed", path, raw.line, f"{location}: {error}")
    if not passage.strip() or not question.strip():
        field = "question" if passage.strip() else "passage"
        return BadLine("blank", path, raw.line, f"{location}: the {field} is blank")
    return Question(passage, question.strip(), answers, name or str(raw.line), path, raw.line)


def references(record: dict[str, Any], passage: str) -> tuple[ReferenceAnswer, ...]:
    """The answers of a record, in any of the known forms, each checked against its passage."""
    answers = next((record[name] for name in ANSWER if name in record), None)
    impossible = record.get("is_impossible") is True
    if answers is None and not impossible and not {*ANSWER} & record.keys():
        raise ValueError("'answers' is missing")
    if isinstance(answers, dict):  # parallel lists, as in Hugging Face datasets
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError("'answers' must hold 'text' and 'answer_start', two lists of one length")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(answers, list):
        pairs = [_text_and_start(answer) for answer in answers]
    else:
        pairs = [(answers, record.get("answer_start"))] if answers else []
    if impossible and pairs:
        raise ValueError("'is_impossible' is true, but there is an answer")
    return tuple(_located(text, start, passage) for text, start in pairs)


def _text_and_start(answer: Any) -> tuple[Any, Any]:
    if isinstance(answer, str):
        return answer, None
    if not isinstance(answer, dict):
        raise ValueError("an answer must be an object with 'text' and 'answer_start'")
    for name in ("text", "answer_start"):
        if name not in answer:
            raise ValueError(f"'{name}' of an answer is missing")
    return answer["text"], answer["answer_start"]


def _located(text: Any, start: Any, passage: str) -> ReferenceAnswer:
    if not check_string("answer", text).strip():
        raise ValueError("an answer is blank")
    shown = repr(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…")
    first = passage.find(text)
    if start is None or start == "":
        if first < 0:
            raise NotInPassageError(f"the answer {shown} is not in its passage")
        return ReferenceAnswer(text, first)
    try:
        position = int(start) if isinstance(start, str) else start
    except ValueError:
        position = None
    if not isinstance(position, int) or isinstance(position, bool):
        raise ValueError(f"'answer_start' must be a whole number, got {start!r:.40}")
    if position < 0 or passage[position : position + len(text)] != text:
        hint = "nor anywhere else" if first < 0 else f"but at {first}"
        raise NotInPassageError(f"the answer {shown} is not in its passage at character {position}, {hint}")
    return ReferenceAnswer(text, position)


def _squad(path: Path, progress: ProgressCallback | None) -> Iterator[RawQuestion | BadLine]:
    """Yield the questions of all paragraphs of all articles; what is missing is named with its path in the JSON."""
    number = 1

    def items(holder: Any, name: str, location: str) -> list[Any] | BadLine:
        value = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(value, list):
            return value
        problem = "missing" if value is None else "not a list"
        return BadLine("malformed", path, number, f"{location}: '{name}' is {problem}")

    for article_index, article in enumerate(_articles(path, progress)):
        paragraphs = items(article, "paragraphs", f"data[{article_index}]")
        if isinstance(paragraphs, BadLine):
            yield paragraphs
            continue
        for paragraph_index, paragraph in enumerate(paragraphs):
            location = f"data[{article_index}].paragraphs[{paragraph_index}]"
            questions = items(paragraph, "qas", location)
            if isinstance(questions, BadLine):
                yield questions
            elif not isinstance(paragraph.get("context"), str):
                yield BadLine("malformed", path, number, f"{location}: 'context' is missing or not a string")
            else:
                for index, record in enumerate(questions):
                    fields = record if isinstance(record, dict) else {}
                    yield RawQuestion(number, f"{location}.qas[{index}]", paragraph["context"], fields)
                    number += 1


def _articles(path: Path, progress: ProgressCallback | None) -> list[Any]:
    try:
        content = json.loads(read_text_file(path, progress=progress))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list):
        raise DataError(f"{path} has no list 'data', as SQuAD files have: write one question a line to a .jsonl")
    return data


def _table(
    path: Path, columns: Sequence[str], answered: bool, progress: ProgressCallback | None
) -> Iterator[RawQuestion | BadLine]:
    """Yield the questions of a .jsonl, .tsv, .csv or tab-separated .txt."""
    if not is_table(path):
        raise DataError(f"{path}: questions come as .json (SQuAD), .jsonl, .tsv, .csv or tab-separated .txt")
    layout = read_layout(path, columns)
    if columns and not 2 + answered <= len(columns) <= len(COLUMN_ORDER):
        raise DataError(
            f"{path}: passage, question, answer are the columns, got {argument('columns', ','.join(columns))}"
        )
    check_columns(layout, columns)
    header = layout.names if layout.separator else ()
    passage = next((name for name in PASSAGE if name in header), PASSAGE[0])
    optional = ("answer", "answer_start", "id") if answered else ("id",)
    usual = (passage, "question", *(name for name in optional if name in header or name == "answer"))
    names = dict(zip(columns, COLUMN_ORDER, strict=False))
    for row in scan_named(layout, columns or usual, progress=progress):
        if isinstance(row, BadLine):
            yield row
        else:
            record = {names.get(name, name): value for name, value in row[1].items()}
            passages = (record[name] for name in PASSAGE if name in record)
            yield RawQuestion(row[0], f"line {row[0]}", next(passages, None), record)


def _is_json(path: Path) -> bool:
    return any(suffix.lower() == ".json" for suffix in path.suffixes[-2:])


def has_questions(path: Path) -> bool:
    """Whether a file seems to hold questions about passages."""
    if path.is_dir() or _is_json(path):
        return _is_json(path)
    header = read_layout(path).names if is_table(path) else ()
    return "question" in header and all(any(name in header for name in names) for names in (PASSAGE, ANSWER))


def format_questions(questions: Sequence[Question], path: Path) -> Iterator[str]:
    """Format questions as the content of a .jsonl or a SQuAD file, by the file's name."""
    if not _is_json(path):
        for question in questions:
            yield json.dumps({"passage": question.passage, **_squad_record(question)}, ensure_ascii=False) + "\n"
        return
    grouped = groupby(questions, key=lambda question: question.passage)
    paragraphs = [{"context": passage, "qas": list(map(_squad_record, group))} for passage, group in grouped]
    article = {"title": path.name.partition(".")[0], "paragraphs": paragraphs}
    yield json.dumps({"version": "v2.0", "data": [article]}, ensure_ascii=False) + "\n"


def _squad_record(question: Question) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start} for text, start in question.answers]
    return {"id": question.id, "question": question.question, "answers": answers, "is_impossible": not answers}


def question_cells(question: Question) -> tuple[str, ...]:
    """A question as a row of a table, which holds one answer."""
    text, start = question.answers[0] if question.answers else ("", "")
    return question.id, question.passage, question.question, text, str(start)
