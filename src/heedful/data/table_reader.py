"""Rows of tables: .tsv, .csv and .jsonl, with a header, without one, or with names in every record.

Rows are cut by our own scan, because `csv.reader` alone yields neither line numbers of bad rows nor a bound on memory
for a quote that is never closed.
"""

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
HEADERLESS = ("source", "target")
"""Columns that need no header."""
LIST_SEPARATOR = "|"
"""Between the items of a list in one cell."""

Cells = tuple[int, tuple[str, ...]]
"""The line a row starts on, and its selected cells."""

Lines = Iterator[str | BadLine]
Pick = Callable[[Any], tuple[str, ...]]


def file_format(path: Path) -> str:
    """The format of a file, by its name: tsv, csv, jsonl, or lines."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = name.suffix.lower().removeprefix(".")
    return suffix if suffix in TABLES else "lines"


def scan_table(
    path: Path,
    columns: tuple[str, ...],
    *,
    progress: ProgressCallback | None = None,
    any_type: str | None = None,
) -> Iterator[Cells | BadLine]:
    """Yield the named columns of each row; a row that cannot be used as `BadLine`. A pair needs no header.

    In the `any_type` column of a .jsonl, numbers, booleans and lists are converted to what they would be in a .csv.
    """
    rows = _parse(path, scan_lines(path, progress=progress))
    pick: Pick | None = None
    for row in rows:
        if isinstance(row, BadLine):
            yield row
            continue
        line, cells = row
        if pick is None:
            pick, is_header = _picker(path, cells, columns, any_type)
            if is_header:
                continue
        try:
            yield line, pick(cells)
        except ValueError as error:
            yield BadLine("malformed", path, line, str(error))


def scan_named(
    path: Path, columns: tuple[str, ...], *, progress: ProgressCallback | None = None
) -> Iterator[tuple[int, dict[str, Any]] | BadLine]:
    """Yield each row by column name: the records of a .jsonl as they are, these columns of another table."""
    if file_format(path) == "jsonl":
        yield from _records(path, scan_lines(path, progress=progress))
        return
    for row in scan_table(path, columns, progress=progress):
        yield row if isinstance(row, BadLine) else (row[0], dict(zip(columns, row[1], strict=True)))


def table_columns(path: Path) -> list[str]:
    """Column names from a header or the first record; without either, the cells of the first row."""
    first = next((row for row in _parse(path, scan_lines(path)) if not isinstance(row, BadLine)), (0, []))
    return [str(name).strip().lower() for name in first[1]]


def quoted_names(names: Sequence[str]) -> str:
    """Column names for a message, long ones shortened."""
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)


def _parse(path: Path, lines: Lines) -> Iterator[tuple[int, list[str]] | tuple[int, dict[str, Any]] | BadLine]:
    return {"tsv": _tsv, "csv": _csv, "jsonl": _records}[file_format(path)](path, lines)


def _tsv(path: Path, lines: Lines) -> Iterator[tuple[int, list[str]] | BadLine]:
    """Cells between tabs; there is no quoting."""
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
    start, size, in_quotes = 1, 0, False
    for number, line in enumerate(lines, 1):
        if isinstance(line, BadLine):
            yield line
            if row:
                yield BadLine("malformed", path, start, f"the row is interrupted by line {number}")
            row, size, in_quotes = [], 0, False
            continue
        if not row:
            start = number
        row.append(line)
        size += len(line)
        in_quotes ^= line.count('"') % 2 == 1
        if in_quotes and size <= MAX_LINE:
            continue
        yield _csv_row(path, start, "".join(row), in_quotes)
        row, size, in_quotes = [], 0, False
    if row:
        yield _csv_row(path, start, "".join(row), in_quotes)


def _csv_row(path: Path, start: int, row: str, in_quotes: bool) -> tuple[int, list[str]] | BadLine:
    if in_quotes:
        return BadLine("malformed", path, start, "a quote is never closed")
    if not row.strip():
        return BadLine("blank", path, start, "the line is blank")
    if '"' not in row:
        return start, row.removesuffix("\n").split(",")
    try:
        (cells,) = csv.reader([row], strict=True)
    except (csv.Error, ValueError) as error:
        return BadLine("malformed", path, start, f"not valid CSV: {error}")
    return start, cells


def _records(path: Path, lines: Lines) -> Iterator[tuple[int, dict[str, Any]] | BadLine]:
    """Parse the JSON objects of a .jsonl, each with its line number."""
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
        return BadLine("malformed", path, number, 'not a JSON object, such as {"text": "…"}')
    return number, record


def _picker(
    path: Path, first: list[str] | dict[str, Any], wanted: tuple[str, ...], any_type: str | None
) -> tuple[Pick, bool]:
    """A function that takes the wanted columns from a row, and whether the first row is a header."""
    if isinstance(first, dict):
        names = list(first)
        if all(name in names for name in wanted):
            return lambda record: _values(record, wanted, any_type), False
        if len(wanted) == 2 and isinstance(inner := first.get("translation"), dict):
            languages = tuple(inner)  # in the order of the first record
            if len(languages) == 2:
                return lambda record: _values(record.get("translation"), languages), False
            names = [f"translation.{language}" for language in languages]
    else:
        names = [cell.strip() for cell in first]
        columns = [name.lower() for name in names]
        if all(name in columns for name in wanted):
            return _cell_picker(len(first), [columns.index(name) for name in wanted]), True
        if wanted == HEADERLESS and len(first) == 2 and not set(wanted) & set(columns):
            return _cell_picker(2, [0, 1]), False
    missing = [repr(name) for name in wanted if name not in names]
    raise DataError(f"{path} has no column {' and no column '.join(missing)}; columns found: {quoted_names(names)}")


def _cell_picker(width: int, positions: Sequence[int]) -> Pick:
    def pick(cells: Sequence[str]) -> tuple[str, ...]:
        if len(cells) != width:
            raise ValueError(f"{len(cells)} columns instead of {width}")
        return tuple(cells[position] for position in positions)

    return pick


def _values(record: Any, names: tuple[str, ...], any_type: str | None = None) -> tuple[str, ...]:
    values = {name: record.get(name) if isinstance(record, dict) else None for name in names}
    return tuple(check_string(name, _as_cell(value) if name == any_type else value) for name, value in values.items())


def _as_cell(value: Any) -> Any:
    """Convert a number, boolean or list to what it would be in a cell of a .csv."""
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return LIST_SEPARATOR.join(str(_as_cell(part)) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def check_string(name: str, value: Any) -> str:
    """Check that a JSON value is a valid string: without a NUL or half a surrogate pair, which JSON can encode."""
    if not isinstance(value, str):
        raise ValueError(f"'{name}' is {'missing' if value is None else 'not a string'}")
    if "\0" in value:
        raise ValueError(f"'{name}' contains a NUL")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"'{name}' contains half a surrogate pair")
    return value
