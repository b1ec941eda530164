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

from heedful.data.corpus_readers import Files, text_files
from heedful.data.line_reader import MAX_LINE, Fault, Watch, read_whole, scan_lines
from heedful.data.table_reader import TABLES, check_string, kind_of, scan_table, table_columns
from heedful.errors import DataError

PASSAGE = ("passage", "context")
"""The two names it goes by."""
ANSWER = ("answers", "answer")
SHOWN = 60


class Reference(NamedTuple):
    """An answer that is right: passage[start : start + len(text)]."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage. Without answers, the passage does not tell. `line` counts questions in a .json."""

    passage: str
    question: str
    answers: tuple[Reference, ...]
    id: str
    path: Path
    line: int


class NotInPassageError(ValueError):
    """An answer that does not stand where it should."""


def scan_questions(
    files: Files, *, answered: bool = True, limit: int = MAX_LINE, watch: Watch | None = None
) -> Iterator[Question | Fault]:
    """Every question in order, the unusable ones as faults. Unless `answered`, answers are not looked at."""
    for path in text_files(files):
        rows = _squad(path, watch) if _is_json(path) else _flat(path, answered, limit, watch)
        for row in rows:
            yield row if isinstance(row, Fault) else _question(path, row, answered)


class Raw(NamedTuple):
    """A question as it stands in a file: where (in words, too), about what, and everything that is said of it."""

    line: int
    place: str
    passage: Any
    record: dict[str, Any]


def _question(path: Path, raw: Raw, answered: bool) -> Question | Fault:
    name = raw.record.get("id")
    name = str(name) if isinstance(name, str | int) else ""
    where = f"question {name!r:.40} ({raw.place})" if name else raw.place
    try:
        passage, question = check_string("passage", raw.passage), check_string("question", raw.record.get("question"))
        answers = references(raw.record, passage) if answered else ()
    except NotInPassageError as error:
        return Fault("span", path, raw.line, f"{where}: {error}")
    except ValueError as error:
        return Fault("malformed", path, raw.line, f"{where}: {error}")
    if not passage.strip() or not question.strip():
        what = "question" if passage.strip() else "passage"
        return Fault("blank", path, raw.line, f"{where}: the {what} is blank")
    return Question(passage, question.strip(), answers, name or str(raw.line), path, raw.line)


def references(record: dict[str, Any], passage: str) -> tuple[Reference, ...]:
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


def _located(text: Any, start: Any, passage: str) -> Reference:
    if not check_string("answer", text).strip():
        raise ValueError("an answer is blank")
    shown = repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
    first = passage.find(text)
    if start is None or start == "":
        if first < 0:
            raise NotInPassageError(f"the answer {shown} is not in its passage")
        return Reference(text, first)
    try:
        at = int(start) if isinstance(start, str) else start
    except ValueError:
        at = None
    if not isinstance(at, int) or isinstance(at, bool):
        raise ValueError(f"'answer_start' must be a whole number, got {start!r:.40}")
    if at < 0 or passage[at : at + len(text)] != text:
        hint = "nor anywhere else" if first < 0 else f"but at {first}"
        raise NotInPassageError(f"the answer {shown} is not in its passage at character {at}, {hint}")
    return Reference(text, at)


def _squad(path: Path, watch: Watch | None) -> Iterator[Raw | Fault]:
    """Articles of paragraphs of questions; what is missing is named, with its place."""
    number = 1

    def part(holder: Any, name: str, place: str) -> list[Any] | Fault:
        found = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(found, list):
            return found
        return Fault("malformed", path, number, f"{place}: '{name}' is {'missing' if found is None else 'no list'}")

    for article, holder in enumerate(_articles(path, watch)):
        paragraphs = part(holder, "paragraphs", f"data[{article}]")
        if isinstance(paragraphs, Fault):
            yield paragraphs
            continue
        for at, paragraph in enumerate(paragraphs):
            place = f"data[{article}].paragraphs[{at}]"
            asked = part(paragraph, "qas", place)
            if isinstance(asked, Fault):
                yield asked
            elif not isinstance(paragraph.get("context"), str):
                yield Fault("malformed", path, number, f"{place}: 'context' is missing, or no string")
            else:
                for order, record in enumerate(asked):
                    known = record if isinstance(record, dict) else {}
                    yield Raw(number, f"{place}.qas[{order}]", paragraph["context"], known)
                    number += 1


def _articles(path: Path, watch: Watch | None) -> list[Any]:
    try:
        whole = json.loads(read_whole(path, watch=watch))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    data = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(data, list):
        raise DataError(f"{path} has no list 'data', as SQuAD files do; a .jsonl has one question a line")
    return data


def _flat(path: Path, answered: bool, limit: int, watch: Watch | None) -> Iterator[Raw | Fault]:
    rows = _records(path, limit, watch) if kind_of(path) == "jsonl" else _cells(path, answered, limit, watch)
    for row in rows:
        if isinstance(row, Fault):
            yield row
        else:
            line, record = row
            passage = next((record[name] for name in PASSAGE if name in record), None)
            yield Raw(line, f"line {line}", passage, record)


def _records(path: Path, limit: int, watch: Watch | None) -> Iterator[tuple[int, dict[str, Any]] | Fault]:
    for number, line in enumerate(scan_lines(path, limit=limit, watch=watch), 1):
        if isinstance(line, Fault):
            yield line
        elif not line.strip():
            yield Fault("blank", path, number, "the line is blank")
        else:
            yield _record(path, number, line)


def _record(path: Path, number: int, line: str) -> tuple[int, dict[str, Any]] | Fault:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Fault("malformed", path, number, f"not JSON: {error}")
    if not isinstance(record, dict):
        return Fault("malformed", path, number, 'not a JSON object, such as {"passage": "…", "question": "…"}')
    return number, record


def _cells(path: Path, answered: bool, limit: int, watch: Watch | None) -> Iterator[tuple[int, dict[str, Any]] | Fault]:
    if kind_of(path) == "lines":
        raise DataError(f"{path}: questions come as .json (SQuAD), .jsonl, .tsv or .csv")
    there = table_columns(path)
    passage = next((name for name in PASSAGE if name in there), PASSAGE[0])
    also = ("answer", "answer_start", "id") if answered else ("id",)
    wanted = (passage, "question", *(name for name in also if name in there or name == "answer"))
    for row in scan_table(path, wanted, limit=limit, watch=watch):
        yield row if isinstance(row, Fault) else (row[0], dict(zip(wanted, row[1], strict=True)))


def _is_json(path: Path) -> bool:
    return any(suffix.lower() == ".json" for suffix in path.suffixes[-2:])


def asks_questions(path: Path) -> bool:
    """Whether a file looks as if it held questions about passages."""
    if path.is_dir() or _is_json(path):
        return _is_json(path)
    there = table_columns(path) if kind_of(path) in TABLES else []
    return "question" in there and all(any(name in there for name in names) for names in (PASSAGE, ANSWER))


def spelt_out(questions: Sequence[Question], path: Path) -> Iterator[str]:
    """The questions as a file of this name would have them; a table has one answer to each."""
    if _is_json(path):
        grouped = groupby(questions, key=lambda asked: asked.passage)
        paragraphs = [{"context": passage, "qas": [_as_squad(asked) for asked in group]} for passage, group in grouped]
        article = {"title": path.name.partition(".")[0], "paragraphs": paragraphs}
        yield json.dumps({"version": "v2.0", "data": [article]}, ensure_ascii=False) + "\n"
    elif kind_of(path) == "jsonl":
        for asked in questions:
            yield json.dumps({"passage": asked.passage, **_as_squad(asked)}, ensure_ascii=False) + "\n"
    else:
        between = "\t" if kind_of(path) == "tsv" else ","
        for cells in (("id", "passage", "question", "answer", "answer_start"), *map(_as_cells, questions)):
            quoted = cells if between == "\t" else ['"' + cell.replace('"', '""') + '"' for cell in cells]
            yield between.join(quoted) + "\n"


def _as_squad(asked: Question) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start} for text, start in asked.answers]
    return {"id": asked.id, "question": asked.question, "answers": answers, "is_impossible": not answers}


def _as_cells(asked: Question) -> tuple[str, ...]:
    text, start = asked.answers[0] if asked.answers else ("", "")
    return asked.id, asked.passage, asked.question, text, str(start)
