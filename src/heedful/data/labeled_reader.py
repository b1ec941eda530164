"""Labeled texts as a stream: tables with one or two columns of text and a column of labels.

    text, label               one label each
    text_a, text_b, label     two texts that are judged together
    text, labels              any number of labels, separated by "|" or ","; a list in .jsonl

Other usual names of these columns are known too. Of columns with other names, or none, one whose few values repeat
holds labels if just one other holds text; `data.columns` names any others, or gives their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Unpack

from heedful.data.column_names import LABEL, LABELS, TEXT, TEXT_PAIRS
from heedful.data.corpus_files import Files, as_paths
from heedful.data.corpus_readers import ReadOptions, usable_rows
from heedful.data.line_reader import BadLine, scan_lines
from heedful.data.progress import ProgressCallback
from heedful.data.table_layout import is_table, read_layout
from heedful.data.table_reader import quoted_names, scan_table, sniff_labels
from heedful.errors import DataError
from heedful.syntax import argument

SEPARATORS = re.compile(r"[|,]")
MAX_LABEL = 1000
CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")


class LabeledText(NamedTuple):
    """One text, or two, with labels; `line` counts from 1."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    path: Path
    line: int


class LabeledColumns(NamedTuple):
    """Names of a table's columns of texts and labels."""

    texts: tuple[str, ...]
    label: str
    multi_label: bool
    """Whether a text may have any number of labels."""

    def __str__(self) -> str:
        *texts, label = (f"column {name}" if name.isdecimal() else name for name in (*self.texts, self.label))
        return f"{' and '.join(texts)}, labeled by {label}"


def find_columns(path: Path, columns: Sequence[str] = ()) -> LabeledColumns:
    """Find a table's columns of texts and labels: those requested (names, or numbers from 1), or the usual ones."""
    if not is_table(path):
        raise DataError(_not_a_table(path))
    layout = read_layout(path, columns)
    header = [name.casefold() for name in layout.names]
    if columns:
        if len(columns) not in (2, 3):
            raise DataError(
                f"{path}: one or two columns of text, then labels, got {argument('columns', ','.join(columns))}"
            )
        *texts, label = columns
        is_number = label.isdecimal() and label not in header and int(label) <= len(header)
        name = header[int(label) - 1] if is_number else label.casefold()
        return LabeledColumns(tuple(texts), label, name in LABELS)
    texts = next(([*pair] for pair in TEXT_PAIRS if set(pair) <= set(header)), [])
    texts = texts or [name for name in TEXT if name in header][:1]
    labels = [name for name in (*LABEL, *LABELS) if name in header]
    if not (texts and labels) and (sniffed := sniff_labels(layout)):
        return LabeledColumns(sniffed[:1], sniffed[1], False)
    if not texts or not labels:
        missing = [] if texts else ["texts (text; or text_a, text_b)"]
        missing += [] if labels else ["labels (label)"]
        cells = layout.names or (layout.sample[0] if layout.sample else ())
        raise DataError(
            f"{path} has no column of {' and '.join(missing)}; columns found: {quoted_names(cells)}; "
            f"name them, texts first, or give their numbers ({argument('columns')})"
        )
    return LabeledColumns(tuple(texts), labels[0], labels[0] in LABELS)


def _not_a_table(path: Path) -> str:
    """The message for a file that is not a table."""
    if not path.exists():
        return f"{path}: no such file"
    message = f"labeled texts come as .tsv, .csv, .jsonl or tab-separated .txt; got {path}"
    if path.is_dir():
        return f"{message}, a folder: write one line per text, its label, a tab and the text, to a .tsv"
    if path.suffix == ".json":
        return f"{message}: write one object a line to a .jsonl (jq -c '.[]')"
    first = next(scan_lines(path), "")
    if isinstance(first, str) and first.startswith("__label__"):
        return (
            rf"{path} is in fastText's format: convert it with sed -E 's/^__label__(\S+) /\1\t/' {path} > labeled.tsv"
        )
    return message


def has_labels(path: Path) -> bool:
    """Whether a table seems to hold labeled texts."""
    try:
        find_columns(path)
    except DataError:
        return False
    return True


def find_all_columns(files: Files, names: Sequence[str] = ()) -> list[LabeledColumns]:
    """Find the columns of each file; raise DataError unless all have as many texts, and one label or several."""
    paths = as_paths(files)
    tables = [find_columns(path, names) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if (len(table.texts), table.multi_label) != (len(tables[0].texts), tables[0].multi_label):
            raise DataError(f"{path} has {table}, but {paths[0]} has {tables[0]}: they must be of one kind")
    return tables


def scan_labeled(
    files: Files, *, columns: Sequence[str] = (), progress: ProgressCallback | None = None
) -> Iterator[LabeledText | BadLine]:
    """Yield every labeled text in order, the unusable ones as `BadLine`."""
    for path, table in zip(as_paths(files), find_all_columns(files, columns), strict=True):
        names = (*table.texts, table.label)
        for row in scan_table(read_layout(path, columns), names, progress=progress, any_type=table.label):
            yield row if isinstance(row, BadLine) else _labeled_text(row[1], path, row[0], table.multi_label)


def _labeled_text(cells: Sequence[str], path: Path, line: int, multi_label: bool) -> LabeledText | BadLine:
    *texts, label = (" ".join(cell.split()) for cell in cells)
    if not all(texts):
        return BadLine("blank", path, line, "the text is blank")
    if multi_label:
        parts = (part.strip() for part in SEPARATORS.split(label))
        labels = tuple(dict.fromkeys(part for part in parts if part))
    elif label:
        labels = (label,)
    else:
        return BadLine("malformed", path, line, "the label is empty: give the text one, or take the row out")
    if not all(map(is_label, labels)):
        return BadLine("malformed", path, line, f"a label is one line of at most {MAX_LABEL:,} characters")
    return LabeledText(tuple(texts), labels, path, line)


def is_label(name: str) -> bool:
    """Whether a class may have this name: one short line, without the control characters of a terminal."""
    return 0 < len(name) <= MAX_LABEL and not CONTROL.search(name)


def read_labeled(files: Files, *, columns: Sequence[str] = (), **options: Unpack[ReadOptions]) -> Iterator[LabeledText]:
    """Yield the usable labeled texts."""
    return usable_rows("text", partial(scan_labeled, columns=columns), files, **options)
