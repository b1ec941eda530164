"""Questions about passages, with where their answers stand (T5).

    .json                 SQuAD 1.1 and 2.0 (Rajpurkar 2016, 2018): read as a whole
    .jsonl                a record a question: passage (or context), question, and answers
    .tsv, .csv            columns passage (or context), question and answer; answer_start if there is one

An answer is a stretch of its passage, known by its text and the character it starts at. Where only the text is given
(records and tables), its first occurrence is meant. No answer at all says that the passage does not tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from heedful.data.corpus_readers import Files, expand_folders
from heedful.data.line_reader import MAX_LINE, BadLine, read_text_file, scan_lines
from heedful.data.progress import ProgressCallback
from heedful.data.table_reader import TABLES, check_string, file_format, scan_table, table_columns
from heedful.errors import DataError

PASSAGE = ("passage", "context")
"""The two names it goes by."""
ANSWER = ("answers", "answer")
SHOWN = 60


class ReferenceAnswer(NamedTuple):
    """An answer that is right: passage[start : start + len(text)]."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage. Without answers, the passage does not tell. `line` counts questions in a .json."""

    passage: str
    question: str
    answers: tuple[ReferenceAnswer, ...]
    id: str
    path: Path
    line: int


class NotInPassageError(ValueError):
    """An answer that does not stand where it should."""


def scan_questions(
    files: Files, *, answered: bool = True, limit: int = MAX_LINE, progress: ProgressCallback | None = None
) -> Iterator[Question | BadLine]:
    """Every question in order, the unusable ones as faults. Unless `answered`, answers are not looked at."""
    for path in expand_folders(files):
        rows = _squad(path, progress) if _is_json(path) else _flat(path, answered, limit, progress)
        for row in rows:
            yield row if isinstance(row, BadLine) else _question(path, row, answered)


class RawQuestion(NamedTuple):
    """A question as it stands in a file: where (in words, too), about what, and everything that is said of it."""

    line: int
    place: str
    passage: Any
    record: dict[str, Any]


def _question(path: Path, raw: RawQuestion, answered: bool) -> Question | BadLine:
    name = raw.record.get("id")
    name = str(name) if isinstance(name, str | int) else ""
    where = f"question {name!r:.40} ({raw.place})" if name else raw.place
    try:
        passage, question = check_string("passage", raw.passage), check_string("question", raw.record.get("question"))
        answers = references(raw.record, passage) if answered else ()
    except NotInPassageError as error:
        return BadLine("span", path, raw.line, f"{where}: {error}")
    except ValueError as error:
        return BadLine("malformed", path, raw.line, f"{where}: {error}")
    if not passage.strip() or not question.strip():
        what = "question" if passage.strip() else "passage"
        return BadLine("blank", path, raw.line, f"{where}: the {what} is blank")
    return Question(passage, question.strip(), answers, name or str(raw.line), path, raw.line)


def references(record: dict[str, Any], passage: str) -> tuple[ReferenceAnswer, ...]:
    """The answers of a record, in whichever form it has them, each held against its passage."""
    given = next((record[name] for name in ANSWER if name in record), None)
    impossible = record.get("is_impossible") is True
    if given is None and not impossible and not {*ANSWER} & record.keys():
        raise ValueError("'answers' is missing")
    if isinstance(given, dict):  # lists side by side, as Hugging Face keeps them
        texts, starts = given.get("text"), given.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError("'answers' must hold 'text' and 'answer_start', two lists of one length")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(given, list):
        pairs = [_of_list(answer) for answer in given]
    else:
        pairs = [(given, record.get("answer_start"))] if given else []
    if impossible and pairs:
        raise ValueError("'is_impossible' is true, and yet there is an answer")
    return tuple(_located(text, start, passage) for text, start in pairs)


def _of_list(answer: Any) -> tuple[Any, Any]:
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
    shown = repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
    first = passage.find(text)
    if start is None or start == "":
        if first < 0:
            raise NotInPassageError(f"the answer {shown} is not in its passage")
        return ReferenceAnswer(text, first)
    try:
        at = int(start) if isinstance(start, str) else start
    except ValueError:
        at = None
    if not isinstance(at, int) or isinstance(at, bool):
        raise ValueError(f"'answer_start' must be a whole number, got {start!r:.40}")
    if at < 0 or passage[at : at + len(text)] != text:
        hint = "nor anywhere else" if first < 0 else f"but at {first}"
        raise NotInPassageError(f"the answer {shown} is not in its passage at character {at}, {hint}")
    return ReferenceAnswer(text, at)


def _squad(path: Path, progress: ProgressCallback | None) -> Iterator[RawQuestion | BadLine]:
    """Articles of paragraphs of questions; what is missing is named, with its place."""
    number = 1

    def part(holder: Any, name: str, place: str) -> list[Any] | BadLine:
        found = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(found, list):
            return found
        return BadLine("malformed", path, number, f"{place}: '{name}' is {'missing' if found is None else 'no list'}")

    for article, holder in enumerate(_articles(path, progress)):
        paragraphs = part(holder, "paragraphs", f"data[{article}]")
        if isinstance(paragraphs, BadLine):
            yield paragraphs
            continue
        for at, paragraph in enumerate(paragraphs):
            place = f"data[{article}].paragraphs[{at}]"
            asked = part(paragraph, "qas", place)
            if isinstance(asked, BadLine):
                yield asked
            elif not isinstance(paragraph.get("context"), str):
                yield BadLine("malformed", path, number, f"{place}: 'context' is missing, or no string")
            else:
                for order, record in enumerate(asked):
                    known = record if isinstance(record, dict) else {}
                    yield RawQuestion(number, f"{place}.qas[{order}]", paragraph["context"], known)
                    number += 1


def _articles(path: Path, progress: ProgressCallback | None) -> list[Any]:
    try:
        whole = json.loads(read_text_file(path, progress=progress))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    data = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(data, list):
        raise DataError(f"{path} has no list 'data', as SQuAD files do; a .jsonl has one question a line")
    return data


def _flat(path: Path, answered: bool, limit: int, progress: ProgressCallback | None) -> Iterator[RawQuestion | BadLine]:
    rows = _records(path, limit, progress) if file_format(path) == "jsonl" else _cells(path, answered, limit, progress)
    for row in rows:
        if isinstance(row, BadLine):
            yield row
        else:
            line, record = row
            passage = next((record[name] for name in PASSAGE if name in record), None)
            yield RawQuestion(line, f"line {line}", passage, record)


def _records(path: Path, limit: int, progress: ProgressCallback | None) -> Iterator[tuple[int, dict[str, Any]] | BadLine]:
    for number, line in enumerate(scan_lines(path, limit=limit, progress=progress), 1):
        if isinstance(line, BadLine):
            yield line
        elif not line.strip():
            yield BadLine("blank", path, number, "the line is blank")
        else:
            yield _record(path, number, line)


def _record(path: Path, number: int, line: str) -> tuple[int, dict[str, Any]] | BadLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine("malformed", path, number, f"not JSON: {error}")
    if not isinstance(record, dict):
        return BadLine("malformed", path, number, 'not a JSON object, such as {"passage": "…", "question": "…"}')
    return number, record


def _cells(path: Path, answered: bool, limit: int, progress: ProgressCallback | None) -> Iterator[tuple[int, dict[str, Any]] | BadLine]:
    if file_format(path) == "lines":
        raise DataError(f"{path}: questions come as .json (SQuAD), .jsonl, .tsv or .csv")
    there = table_columns(path)
    passage = next((name for name in PASSAGE if name in there), PASSAGE[0])
    also = ("answer", "answer_start", "id") if answered else ("id",)
    wanted = (passage, "question", *(name for name in also if name in there or name == "answer"))
    for row in scan_table(path, wanted, limit=limit, progress=progress):
        yield row if isinstance(row, BadLine) else (row[0], dict(zip(wanted, row[1], strict=True)))


def _is_json(path: Path) -> bool:
    return any(suffix.lower() == ".json" for suffix in path.suffixes[-2:])


def has_questions(path: Path) -> bool:
    """Whether a file looks as if it held questions about passages."""
    if path.is_dir() or _is_json(path):
        return _is_json(path)
    there = table_columns(path) if file_format(path) in TABLES else []
    return "question" in there and all(any(name in there for name in names) for names in (PASSAGE, ANSWER))


def format_questions(questions: Sequence[Question], path: Path) -> Iterator[str]:
    """The questions as a file of this name would have them; a table has one answer to each."""
    if _is_json(path):
        grouped = groupby(questions, key=lambda asked: asked.passage)
        paragraphs = [{"context": passage, "qas": [_as_squad(asked) for asked in group]} for passage, group in grouped]
        article = {"title": path.name.partition(".")[0], "paragraphs": paragraphs}
        yield json.dumps({"version": "v2.0", "data": [article]}, ensure_ascii=False) + "\n"
    elif file_format(path) == "jsonl":
        for asked in questions:
            yield json.dumps({"passage": asked.passage, **_as_squad(asked)}, ensure_ascii=False) + "\n"
    else:
        between = "\t" if file_format(path) == "tsv" else ","
        for cells in (("id", "passage", "question", "answer", "answer_start"), *map(_as_cells, questions)):
            quoted = cells if between == "\t" else ['"' + cell.replace('"', '""') + '"' for cell in cells]
            yield between.join(quoted) + "\n"


def _as_squad(asked: Question) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start} for text, start in asked.answers]
    return {"id": asked.id, "question": asked.question, "answers": answers, "is_impossible": not answers}


def _as_cells(asked: Question) -> tuple[str, ...]:
    text, start = asked.answers[0] if asked.answers else ("", "")
    return asked.id, asked.passage, asked.question, text, str(start)
