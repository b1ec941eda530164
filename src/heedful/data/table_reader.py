"""Rows of tables by column: names of a header, names of records, or numbers from 1.

Rows are cut by our own scan (`table_layout`), because `csv.reader` alone yields neither line numbers of bad rows nor a
bound on memory for a quote that is never closed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from heedful.data.column_names import MIN_ROWS, is_known, language, pair_columns
from heedful.data.line_reader import BadLine, scan_lines
from heedful.data.progress import ProgressCallback
from heedful.data.table_layout import Record, TableLayout, parse_rows
from heedful.errors import DataError
from heedful.quantities import count
from heedful.syntax import argument

LIST_SEPARATOR = "|"
"""Separator of the items of a list in one cell."""
MIN_CATEGORY_ROWS, MAX_CATEGORIES = 20, 3
"""A column with at least this many rows and at most this many values holds categories, not text."""
MAX_STRAY = 0.05
"""Maximum share of cells in a column of numbers that are not numbers."""
MIN_REPEATS = 5
"""Rows for each value of a column of labels, on average."""
NO_TEXT = re.compile(r"|https?://\S*|[+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?|[a-z]{2,3}(?:[-_][A-Z]{2})?")
"""Cells that are not text: a blank, an address, a number or the code of a language."""

MAX_KEY_DEPTH = 4
"""Maximum number of nested objects around a text in a record."""

Cells = tuple[int, tuple[str, ...]]
"""The line a row starts on, and its selected cells."""
Pick = Callable[[Any], tuple[str, ...]]


def scan_table(
    layout: TableLayout,
    columns: Sequence[str],
    *,
    progress: ProgressCallback | None = None,
    any_type: str | None = None,
) -> Iterator[Cells | BadLine]:
    """Yield these columns of each row; a row that cannot be used as `BadLine`.

    In the `any_type` column of a .jsonl, numbers, booleans and lists are converted to what they would be in a .csv.
    """
    pick = _picker(layout, columns, any_type)
    below_header = not layout.has_header
    for row in parse_rows(layout, scan_lines(layout.path, progress=progress)):
        if isinstance(row, BadLine):
            yield row
        elif not below_header:
            below_header = True
        else:
            try:
                yield row[0], pick(row[1])
            except ValueError as error:
                yield BadLine("malformed", layout.path, row[0], str(error))


def scan_named(
    layout: TableLayout, columns: Sequence[str], *, progress: ProgressCallback | None = None
) -> Iterator[Record | BadLine]:
    """Yield each row by column name: the records of a .jsonl as they are, these columns of another table."""
    if not layout.separator:
        yield from parse_rows(layout, scan_lines(layout.path, progress=progress))  # type: ignore[misc]
        return
    for row in scan_table(layout, columns, progress=progress):
        yield row if isinstance(row, BadLine) else (row[0], dict(zip(columns, row[1], strict=True)))


def choose_pair(layout: TableLayout, columns: Sequence[str] = ()) -> tuple[str, str]:
    """The columns of source and target: those requested, those with the usual names, or the first two of text."""
    if columns:
        return _requested_pair(layout.path, columns)
    if layout.names:
        names = layout.names if layout.separator else _text_keys(layout)
        nested = [name for name in names if "." in name and name not in layout.names]
        if pair := pair_columns(names) or (pair_columns(nested) if len(nested) == 2 else None):
            return pair
    texts = [number for number in range(layout.width) if _holds_text(layout, number)]
    unknown = layout.has_header and not any(language(layout.names[n]) or is_known(layout.names[n]) for n in texts)
    if unknown and len(texts) == 2 and len(layout.sample) >= MIN_ROWS:
        return str(texts[0] + 1), str(texts[1] + 1)
    if layout.names:
        listed = quoted_names(names or layout.names)
        raise DataError(
            f"{layout.path} has no columns 'source' and 'target'; columns found: {listed}; name two of them "
            f"({argument('columns')})"
        )
    numbers = texts if len(texts) > 1 and layout.width > 2 else range(layout.width)
    if layout.sample and len(numbers) < 2:
        raise DataError(f"{layout.path} has one column, without tabs or other separators: a pair needs two")
    return (str(numbers[0] + 1), str(numbers[1] + 1)) if layout.sample else ("1", "2")


def _requested_pair(path: object, columns: Sequence[str]) -> tuple[str, str]:
    if len(columns) != 2 or columns[0] == columns[1]:
        raise DataError(f"{path}: a pair has two different columns, got {argument('columns', ','.join(columns))}")
    return columns[0], columns[1]


def _text_keys(layout: TableLayout) -> list[str]:
    """The keys of the first record that hold text, those of nested objects (`translation.en`) included."""
    return _string_keys(layout.sample[0])


def _string_keys(record: dict[str, Any], prefix: str = "", depth: int = 0) -> list[str]:
    keys: list[str] = []
    for name, value in record.items():
        if isinstance(value, dict) and depth < MAX_KEY_DEPTH:
            keys += _string_keys(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, str):
            keys.append(prefix + name)
    return keys


def _holds_text(layout: TableLayout, number: int) -> bool:
    """Whether a column without a name seems to hold text, rather than numbers, codes, addresses or categories."""
    cells = [row[number].strip() for row in layout.sample]
    is_category = len(cells) >= MIN_CATEGORY_ROWS and len(set(cells)) <= MAX_CATEGORIES
    return not is_category and sum(not NO_TEXT.fullmatch(cell) for cell in cells) > MAX_STRAY * len(cells)


def sniff_labels(layout: TableLayout) -> tuple[str, str] | None:
    """The columns of text and of labels, if just one seems to hold each and all others hold numbers."""
    columns = [[row[number].strip() for row in layout.sample] for number in range(layout.width)]
    others = [number for number, cells in enumerate(columns) if not all(map(NO_TEXT.fullmatch, cells))]
    labels = [number for number, cells in enumerate(columns) if _are_labels(cells)]
    texts = [number for number in others if len(set(columns[number])) > len(columns[number]) / 2]
    if len(labels) != 1 or len(texts) != 1 or set(others) - {*labels, *texts}:
        return None
    text, label = texts[0], labels[0]
    return (layout.names[text], layout.names[label]) if layout.has_header else (str(text + 1), str(label + 1))


def _are_labels(cells: Sequence[str]) -> bool:
    """Whether cells are a few short values, each of which repeats."""
    counts = Counter(cells)
    return (
        len(cells) >= MIN_CATEGORY_ROWS
        and 2 <= len(counts) <= len(cells) / MIN_REPEATS
        and min(counts.values()) > 1
        and all(cell and len(cell.split()) <= 3 for cell in counts)
    )


def holds_categories(layout: TableLayout, column: str) -> bool:
    """Whether the values of a column are few and repeat, as labels do."""
    pick = _picker(layout, [column], column)
    values = [pick(row)[0] for row in layout.sample]
    return len(set(values)) <= max(1, len(values) / 3)


def describe_columns(layout: TableLayout, columns: Sequence[str]) -> str:
    """The columns that are read, for the user."""
    if layout.has_header:
        columns = [layout.names[_position(layout, column)] for column in columns]
    names = " and ".join(columns)
    if layout.names:
        return f"{names} of {', '.join(name or '(no name)' for name in layout.names)}"
    return f"{names} of {layout.width}, without a header"


def quoted_names(names: Sequence[str]) -> str:
    """Column names for a message, long ones shortened."""
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names) or "none"


def check_columns(layout: TableLayout, columns: Sequence[str]) -> None:
    """Raise DataError unless a table has these columns."""
    _picker(layout, columns, None)


def _picker(layout: TableLayout, columns: Sequence[str], any_type: str | None) -> Pick:
    """A function that takes these columns from a row."""
    if not layout.separator:
        keys = [_key(layout, name) for name in columns] if layout.sample else list(columns)
        return lambda record: tuple(_value(record, key, key == any_type) for key in keys)
    positions = [_position(layout, name) for name in columns] if layout.width else [0] * len(columns)

    def pick(cells: Sequence[str]) -> tuple[str, ...]:
        if len(cells) != layout.width:
            raise ValueError(f"{count(len(cells), 'column')} instead of {layout.width}")
        return tuple(cells[position] for position in positions)

    return pick


def _position(layout: TableLayout, name: str) -> int:
    """The index of a column, by its name or else its number from 1."""
    matches = [index for index, column in enumerate(layout.names) if column == name.strip().casefold()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise DataError(
            f"{layout.path} has {len(matches)} columns {name!r}: give their numbers, as {argument('columns', '1,2')}"
        )
    if name.isdecimal() and 1 <= int(name) <= layout.width:
        return int(name) - 1
    if name.isdecimal():
        raise DataError(f"{layout.path} has no column {name}: it has {layout.width} columns")
    listed = f"columns found: {quoted_names(layout.names)}"
    if not layout.names:
        listed = f"it has no header: give numbers from 1 to {layout.width}, as {argument('columns', '1,2')}"
    raise DataError(f"{layout.path} has no column {name!r}; {listed}")


def _key(layout: TableLayout, name: str) -> str:
    """The key of a record's value, `translation.en` for a nested one; upper and lower case may differ."""
    keys: list[str] = [*layout.sample[0], *_text_keys(layout)]
    if name in keys:
        return name
    for key in keys:
        if key.casefold() == name.casefold():
            return key
    raise DataError(f"{layout.path} has no column {name!r}; columns found: {quoted_names(list(dict.fromkeys(keys)))}")


def _value(record: dict[str, Any], key: str, any_type: bool) -> str:
    value = _nested(record, key)
    return check_string(key, _as_cell(value) if any_type else value)


def _nested(record: dict[str, Any], key: str) -> Any:
    """The value of a key, or of a path of keys with dots between them; None if there is none."""
    if key in record:
        return record[key]
    paths = (key[:end] for end, character in enumerate(key) if character == ".")
    values = (_nested(record[path], key[len(path) + 1 :]) for path in paths if isinstance(record.get(path), dict))
    return next((value for value in values if value is not None), None)


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
