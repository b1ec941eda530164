"""Tables as rows: .tsv, .csv and .jsonl, with a header, without one, or with names in every record."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from heedful.data.line_reader import MAX_LINE, BadLine, scan_lines
from heedful.data.progress import ProgressCallback
from heedful.errors import DataError

COMPRESSED = (".gz", ".xz")
TABLES = ("tsv", "csv", "jsonl")
UNNAMED = ("source", "target")
"""The columns that need no header."""
LIST_SEPARATOR = "|"
"""Between the words of a list in one cell."""

Row = tuple[int, tuple[str, ...]]
"""The line a row starts on, and the cells asked for."""

Pick = Callable[[Any], tuple[str, ...]]


def file_format(path: Path) -> str:
    """How a file is read, by its name: tsv, csv, jsonl, or lines."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = name.suffix.lower().removeprefix(".")
    return suffix if suffix in TABLES else "lines"


def scan_table(
    path: Path,
    columns: tuple[str, ...],
    *,
    limit: int = MAX_LINE,
    progress: ProgressCallback | None = None,
    loose: str | None = None,
) -> Iterator[Row | BadLine]:
    """The named columns, row by row; a row that cannot be used comes as a fault. Two columns may go unnamed.

    In the `loose` column of a .jsonl numbers, truths and lists of words are taken as what they would be in a .csv.
    """
    rows = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl}[file_format(path)](path, scan_lines(path, limit=limit, progress=progress))
    pick: Pick | None = None
    for row in rows:
        if isinstance(row, BadLine):
            yield row
            continue
        line, cells = row
        if pick is None:
            pick, is_header = _picker(path, cells, columns, loose)
            if is_header:
                continue
        try:
            yield line, pick(cells)
        except ValueError as error:
            yield BadLine("malformed", path, line, str(error))


def table_columns(path: Path) -> list[str]:
    """What the first row calls the columns: the names of a header or a record, or simply its cells."""
    rows = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl}[file_format(path)](path, scan_lines(path))
    first = next((row for row in rows if not isinstance(row, BadLine)), (0, []))
    return [str(name).strip().lower() for name in first[1]]


Lines = Iterator[str | BadLine]


def _tsv(path: Path, lines: Lines) -> Iterator[tuple[int, list[str]] | BadLine]:
    """Tabs and newlines part the cells and rows, whatever stands between them: there is no quoting."""
    for number, line in enumerate(lines, 1):
        if isinstance(line, BadLine):
            yield line
        elif not line.strip():
            yield BadLine("blank", path, number, "the line is blank")
        else:
            yield number, line.removesuffix("\n").split("\t")


def _csv(path: Path, lines: Lines) -> Iterator[tuple[int, list[str]] | BadLine]:
    """RFC 4180: a quoted cell may hold commas, newlines and doubled quotes, so a row ends where quotes are even."""
    csv.field_size_limit(max(MAX_LINE, csv.field_size_limit()))
    row: list[str] = []
    start, size, is_open = 1, 0, False
    for number, line in enumerate(lines, 1):
        if isinstance(line, BadLine):
            yield line
            if row:
                yield BadLine("malformed", path, start, f"the row is broken off by line {number}")
            row, size, is_open = [], 0, False
            continue
        if not row:
            start = number
        row.append(line)
        size += len(line)
        is_open ^= line.count('"') % 2 == 1
        if is_open and size <= MAX_LINE:
            continue
        yield _csv_row(path, start, "".join(row), is_open)
        row, size, is_open = [], 0, False
    if row:
        yield _csv_row(path, start, "".join(row), is_open)


def _csv_row(path: Path, start: int, row: str, is_open: bool) -> tuple[int, list[str]] | BadLine:
    if is_open:
        return BadLine("malformed", path, start, "a quote is opened and never closed")
    if not row.strip():
        return BadLine("blank", path, start, "the line is blank")
    if '"' not in row:
        return start, row.removesuffix("\n").split(",")
    try:
        (cells,) = csv.reader([row], strict=True)
    except (csv.Error, ValueError) as error:
        return BadLine("malformed", path, start, f"not sound CSV: {error}")
    return start, cells


def _jsonl(path: Path, lines: Lines) -> Iterator[tuple[int, dict[str, Any]] | BadLine]:
    for number, line in enumerate(lines, 1):
        if isinstance(line, BadLine):
            yield line
        elif not line.strip():
            yield BadLine("blank", path, number, "the line is blank")
        else:
            yield _json_row(path, number, line)


def _json_row(path: Path, number: int, line: str) -> tuple[int, dict[str, Any]] | BadLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine("malformed", path, number, f"not JSON: {error}")
    if not isinstance(record, dict):
        return BadLine("malformed", path, number, 'not a JSON object, such as {"source": "…", "target": "…"}')
    return number, record


def _picker(
    path: Path, first: list[str] | dict[str, Any], wanted: tuple[str, ...], loose: str | None
) -> tuple[Pick, bool]:
    """How to take the wanted columns from a row, and whether the first row is a header: the first row decides."""
    if isinstance(first, dict):
        names, pick, is_header = *_record_picker(first, wanted, loose), False
    else:
        names, pick, is_header = _cell_picker(first, wanted)
    if pick is None:
        found = ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)
        missing = [repr(name) for name in wanted if name not in names]
        raise DataError(f"{path} has no column {' and no column '.join(missing)}; columns found: {found}")
    return pick, is_header


def _cell_picker(first: list[str], wanted: tuple[str, ...]) -> tuple[list[str], Pick | None, bool]:
    names = [cell.strip().lower() for cell in first]
    width = len(names)
    is_header = any(name in names for name in wanted)
    if all(name in names for name in wanted):
        places = tuple(names.index(name) for name in wanted)
    elif width == len(wanted) == 2 and not is_header and wanted == UNNAMED:
        places = (0, 1)
    else:
        return [cell.strip() for cell in first], None, is_header

    def pick(cells: Sequence[str]) -> tuple[str, ...]:
        if len(cells) != width:
            raise ValueError(f"{len(cells)} columns where there should be {width}")
        return tuple(cells[place] for place in places)

    return names, pick, is_header


def _record_picker(first: dict[str, Any], wanted: tuple[str, ...], loose: str | None) -> tuple[list[str], Pick | None]:
    """Values by name, or the two languages of a `translation`, in the order the first record has them."""
    if all(name in first for name in wanted):
        return list(first), lambda record: _values(record, wanted, loose)
    inner = first.get("translation")
    if len(wanted) == 2 and isinstance(inner, dict):
        languages = tuple(inner)
        if len(languages) == 2:
            return list(first), lambda record: _values(record.get("translation"), languages)
        return [f"translation.{language}" for language in languages], None
    return list(first), None


def _values(record: Any, names: tuple[str, ...], loose: str | None = None) -> tuple[str, ...]:
    values = {name: record.get(name) if isinstance(record, dict) else None for name in names}
    return tuple(check_string(name, _plain(value) if name == loose else value) for name, value in values.items())


def _plain(value: Any) -> Any:
    """A number, a truth or a list of words as a cell of a table would have it."""
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return LIST_SEPARATOR.join(str(_plain(part)) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def check_string(name: str, value: Any) -> str:
    """A value checked: JSON can spell what no text file may hold, a NUL or half a surrogate pair."""
    if not isinstance(value, str):
        raise ValueError(f"'{name}' is {'missing' if value is None else 'not a string'}")
    if "\0" in value:
        raise ValueError(f"'{name}' holds a NUL")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"'{name}' holds half a surrogate pair")
    return value
