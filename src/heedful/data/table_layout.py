"""The layout of a table, sniffed from its first rows: separator, quotes, header and number of columns.

    .tsv, .csv     the separator that cuts the rows evenly: tab, comma, semicolon or bar
    .jsonl         names in every record
    other text     a table if nearly every line has a tab, or `|||` between two sides

Lines above the table, such as `sep=;` of Excel and `#separator:tab` of Anki, are left out.
All readers use this layout, so that the doctor examines exactly what a model is trained on.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from heedful.data.column_names import is_header, is_unlike_text, may_be_header
from heedful.data.line_reader import MAX_LINE, BadLine, scan_lines
from heedful.errors import DataError

COMPRESSED = (".gz", ".xz")
TABLES = ("tsv", "csv", "jsonl")
ALIASES = {"ndjson": "jsonl", "jl": "jsonl"}
SEPARATORS = {"tsv": ("\t",), "csv": ("\t", "|||", "|", ";", ","), "lines": ("\t", "|||")}
"""Separators by file format, in order of preference where two cut every row alike: text has commas, rarely tabs."""
MIN_MARGIN = 0.05
"""Share of rows by which a separator later in the list must do better to be preferred."""
SAMPLE_ROWS, SAMPLE_CHARACTERS = 200, 4 << 20
MIN_EVEN = 0.9
"""Share of the lines of a .txt that must be cut into columns alike for it to be a table."""

ENCLOSED = re.compile(r'".*"\s*', re.DOTALL)
DOUBLED = re.compile(r'"(?:[^"]|"")*"\s*')
"""A cell as RFC 4180 quotes it."""
PREAMBLE = re.compile(r"sep=.?|#(?:separator|html|columns|guid|notetype|deck|tags)(?: column)?:.*")
"""A line above a table, as Excel and Anki write it."""

Lines = Iterator[str | BadLine]
Cells = tuple[int, list[str]]
"""The line a row starts on, and its cells."""
Record = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class TableLayout:
    """The layout of a table: separator, quotes, width and column names."""

    path: Path
    separator: str
    """Separator of cells; "" for JSON records."""
    quoted: bool
    """Whether cells may be in quotes, as RFC 4180 has it."""
    width: int
    """Number of columns; 0 for JSON records."""
    names: tuple[str, ...]
    """Names in the header, or of the first record; () without a header."""
    sample: tuple[Any, ...]
    """The first rows below the header: lists of cells, or records."""
    first: tuple[str, ...]
    """The first row, if it looks like a header but is not known to be one."""
    preamble: int = 0
    """Lines above the table."""

    @property
    def has_header(self) -> bool:
        return bool(self.separator and self.names)


def file_format(path: Path) -> str:
    """The format of a file, by its name: tsv, csv, jsonl, tmx, or lines."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = name.suffix.lower().removeprefix(".")
    suffix = ALIASES.get(suffix, suffix)
    return suffix if suffix in (*TABLES, "tmx") else "lines"


def is_table(path: Path) -> bool:
    """Whether a file is a table by its name, or has separators in nearly every line."""
    return file_format(path) in TABLES or (path.is_file() and file_format(path) == "lines" and _is_separated(path))


def _is_separated(path: Path) -> bool:
    """Whether nearly every one of a file's first lines has one of the separators inside."""
    lines = [line for line in _first_lines(path) if isinstance(line, str) and line.strip()]
    lines = [line for line in lines if not PREAMBLE.match(line)]
    counts = (sum(separator in line.strip() for line in lines) for separator in SEPARATORS["lines"])
    return any(count > MIN_EVEN * len(lines) for count in counts)


def read_layout(path: Path, header: Sequence[str] = ()) -> TableLayout:
    """Sniff the layout of a table. A first row that has all the names in `header` is one."""
    if file_format(path) == "jsonl":
        records = tuple(row[1] for row in islice(_usable(_records(path, scan_lines(path))), SAMPLE_ROWS))
        return TableLayout(path, "", False, 0, tuple(records[0]) if records else (), records, ())
    lines = _first_lines(path)
    first_bad = next((line for line in lines if isinstance(line, BadLine) or line.strip()), "")
    if isinstance(first_bad, BadLine):
        raise DataError(str(first_bad).split(" (--on")[0] + "; the first line decides how a table is read")
    separator, quoted = _separator(path, lines)
    preamble = _preamble(lines, separator)
    rows = [row for _, row in _usable(cut_rows(path, iter(lines), separator, quoted, preamble))]
    if not rows:
        return TableLayout(path, separator, quoted, 0, (), (), (), preamble)
    width = Counter(map(len, rows)).most_common(1)[0][0]
    first, below = rows[0], [row for row in rows[1:] if len(row) == width]
    wanted = {name.casefold() for name in header if not name.isdecimal()}
    names = [cell.strip().casefold() for cell in first]
    is_likely = file_format(path) == "csv" and is_unlike_text(first, below)  # most .csv have a header
    if (wanted and wanted <= set(names)) or is_header(first, below) or is_likely:
        if len(first) != width and below:
            raise DataError(f"{path}:{preamble + 1}: the header names {len(first)} columns, but the rows have {width}")
        return TableLayout(path, separator, quoted, len(first), tuple(names), tuple(below), (), preamble)
    doubtful = tuple(names) if may_be_header(first, below) else ()
    even = tuple(row for row in rows if len(row) == width)
    return TableLayout(path, separator, quoted, width, (), even, doubtful, preamble)


def _first_lines(path: Path) -> list[str | BadLine]:
    """The lines that decide a layout, which are few even if they are long."""
    lines: list[str | BadLine] = []
    left = SAMPLE_CHARACTERS
    for line in islice(scan_lines(path), SAMPLE_ROWS):
        lines.append(line)
        left -= len(line) if isinstance(line, str) else 0
        if left <= 0:
            break
    return lines


def _preamble(lines: Sequence[str | BadLine], separator: str) -> int:
    """The number of lines above the table: what Excel and Anki write there, and comments, which are not rows."""
    for number, line in enumerate(lines):
        text = line.strip() if isinstance(line, str) else ""
        if not PREAMBLE.fullmatch(text) and not (text.startswith("#") and separator not in text):
            return number
    return 0


def _separator(path: Path, lines: Sequence[str | BadLine]) -> tuple[str, bool]:
    """The separator that cuts most rows into one number of columns, and whether cells may be quoted."""
    kind = file_format(path)
    best = (0.0, "," if kind == "csv" else "\t", kind == "csv")
    candidates = [(separator, kind == "csv" and len(separator) == 1) for separator in SEPARATORS[kind]]
    if kind == "tsv" and not any("\t" in line for line in lines if isinstance(line, str)):
        best = (1 - MIN_MARGIN - 1e-9, *best[1:])  # another separator than the name says has to cut every row alike
        candidates = [(separator, len(separator) == 1) for separator in SEPARATORS["csv"]]
    for separator, quoted in candidates:
        rows = [row[1] for row in _usable(cut_rows(path, iter(lines), separator, quoted))]
        widths = Counter(len(row) for row in rows if len(row) > 1)
        share = max(widths.values(), default=0) / max(1, len(rows))
        if share > best[0] + MIN_MARGIN:
            best = (share, separator, quoted)
    _, separator, quoted = best
    return separator, quoted or (len(separator) == 1 and _has_quoted_cells(path, lines, separator))


def _has_quoted_cells(path: Path, lines: Sequence[str | BadLine], separator: str) -> bool:
    """Whether a column is in quotes in every row, or only quotes explain the rows: newlines in cells, or `""`."""
    rows = [row[1] for row in _usable(cut_rows(path, iter(lines), separator, False))]
    if len(rows) > 2 and any(all(map(ENCLOSED.fullmatch, column)) for column in zip(*rows, strict=False)):
        return True
    with_quotes = [cell for row in rows for cell in row if '"' in cell]
    if with_quotes and all(map(DOUBLED.fullmatch, with_quotes)):
        return any('""' in cell.strip()[1:-1] for cell in with_quotes)
    quoted = list(cut_rows(path, iter(lines), separator, True))
    quoted = quoted[: len(quoted) - (len(lines) == SAMPLE_ROWS)]  # a quote may be open where the sample ends
    is_malformed = any(isinstance(row, BadLine) and row.kind == "malformed" for row in quoted)
    return len({*map(len, rows)}) > 1 == len({len(cells) for _, cells in _usable(iter(quoted))}) and not is_malformed


def _usable(rows: Iterator[Any]) -> Iterator[Any]:
    return (row for row in rows if not isinstance(row, BadLine))


def parse_rows(layout: TableLayout, lines: Lines) -> Iterator[Cells | Record | BadLine]:
    """Cut lines into rows of cells or records, the unusable ones as `BadLine`."""
    if not layout.separator:
        return _records(layout.path, lines)
    return cut_rows(layout.path, lines, layout.separator, layout.quoted, layout.preamble)


def cut_rows(path: Path, lines: Lines, separator: str, quoted: bool, preamble: int = 0) -> Iterator[Cells | BadLine]:
    """Cut lines into rows of cells, the first lines left out."""
    rows = _quoted(path, lines, separator) if quoted else _unquoted(path, lines, separator)
    return (row for row in rows if (row.line if isinstance(row, BadLine) else row[0]) > preamble)


def _numbered(path: Path, lines: Lines) -> Iterator[tuple[int, str] | BadLine]:
    """Lines with their numbers; a blank one is a bad one."""
    for number, line in enumerate(lines, 1):
        if isinstance(line, str):
            yield (number, line) if line.strip() else BadLine("blank", path, number, "the line is blank")
        else:
            yield line


def _unquoted(path: Path, lines: Lines, separator: str) -> Iterator[Cells | BadLine]:
    for line in _numbered(path, lines):
        yield line if isinstance(line, BadLine) else (line[0], line[1].removesuffix("\n").split(separator))


def _quoted(path: Path, lines: Lines, separator: str) -> Iterator[Cells | BadLine]:
    """RFC 4180: a quoted cell may hold separators, newlines and doubled quotes, so a row ends where quotes are even."""
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
        yield _quoted_row(path, start, "".join(row), in_quotes, separator)
        row, size, in_quotes = [], 0, False
    if row:
        yield _quoted_row(path, start, "".join(row), in_quotes, separator)


def _quoted_row(path: Path, start: int, row: str, in_quotes: bool, separator: str) -> Cells | BadLine:
    if in_quotes:
        return BadLine("malformed", path, start, "a quote is never closed")
    if not row.strip():
        return BadLine("blank", path, start, "the line is blank")
    if '"' not in row:
        return start, row.removesuffix("\n").split(separator)
    try:
        (cells,) = csv.reader([row], strict=True, delimiter=separator)
    except (csv.Error, ValueError) as error:
        return BadLine("malformed", path, start, f"not valid CSV: {error}")
    return start, cells


def _records(path: Path, lines: Lines) -> Iterator[Record | BadLine]:
    """Parse the JSON objects of a .jsonl, each with its line number."""
    for line in _numbered(path, lines):
        yield line if isinstance(line, BadLine) else _json_row(path, *line)


def _json_row(path: Path, number: int, line: str) -> Record | BadLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine("malformed", path, number, f"not JSON: {error}")
    if not isinstance(record, dict):
        return BadLine("malformed", path, number, 'not a JSON object, such as {"text": "…"}')
    return number, record
