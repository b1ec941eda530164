"""Texts with labels, as a stream: tables with a column of texts, or two, and a column of labels.

    text, label               one label each, taken whole
    text_a, text_b, label     two texts that are judged together
    text, labels              any number of labels, between "|" or ","; a list in .jsonl

Usual other names of these columns are known too; `data.columns` names any others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from heedful.data.corpus_readers import Files, as_paths
from heedful.data.line_reader import MAX_LINE, BadLine, OnBadLine, handle_bad_line
from heedful.data.progress import ProgressCallback
from heedful.data.table_reader import TABLES, file_format, scan_table, table_columns
from heedful.errors import DataError

TEXT = ("text", "sentence", "content", "review", "comment", "message", "body", "document", "title")
PAIRS = (("text_a", "text_b"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"))
LABEL = ("label", "class", "category", "sentiment", "gold_label", "target")
LABELS = ("labels", "classes", "categories", "tags")
BETWEEN = re.compile(r"[|,]")


class LabelledText(NamedTuple):
    """One text, or two, and what they are called; `line` of `path` is where, from 1."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    path: Path
    line: int


class LabelledColumns(NamedTuple):
    """Where a table keeps its texts and their labels."""

    texts: tuple[str, ...]
    label: str
    multi_label: bool
    """Whether a text may have any number of labels."""

    def __str__(self) -> str:
        return f"{' and '.join(self.texts)}, labelled by {self.label}"


def find_columns(path: Path, names: Sequence[str] = ()) -> LabelledColumns:
    """The columns of a table that hold texts and labels: those `said`, if it has them, or the usual names."""
    if path.is_dir() or file_format(path) not in TABLES:
        raise DataError(f"labelled texts come as .tsv, .csv or .jsonl with a header; got {path}")
    names = table_columns(path)
    if names and all(name.lower() in names for name in names):
        *texts, label = (name.lower() for name in names)
        return LabelledColumns(tuple(texts), label, label in LABELS)
    texts = next(([*pair] for pair in PAIRS if set(pair) <= set(names)), _first(TEXT, names))
    labels = _first((*LABEL, *LABELS), names)
    if not texts or not labels:
        missing = " and ".join(
            what
            for what, found in (("texts (text; or text_a, text_b)", texts), ("labels (label)", labels))
            if not found
        )
        shown = ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)
        raise DataError(
            f"{path} has no column of {missing}; columns found: {shown}; name them as data.columns (or --columns)"
        )
    return LabelledColumns(tuple(texts), labels[0], labels[0] in LABELS)


def _first(known: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in known if name in names][:1]


def has_labels(path: Path) -> bool:
    """Whether a table looks as if it held labelled texts."""
    try:
        find_columns(path)
    except DataError:
        return False
    return True


def find_all_columns(files: Files, names: Sequence[str] = ()) -> list[LabelledColumns]:
    """The columns of each file; all must hold as many texts a row, and one label each or several."""
    paths = as_paths(files)
    found = [find_columns(path, names) for path in paths]
    for path, columns in zip(paths, found, strict=True):
        if (len(columns.texts), columns.multi_label) != (len(found[0].texts), found[0].multi_label):
            raise DataError(f"{path} has {columns}, but {paths[0]} has {found[0]}: they must be of one kind")
    return found


def scan_labelled(
    files: Files, *, columns: Sequence[str] = (), limit: int = MAX_LINE, progress: ProgressCallback | None = None
) -> Iterator[LabelledText | BadLine]:
    """Every labelled text in order, the unusable ones as faults in their places."""
    for path, found in zip(as_paths(files), find_all_columns(files, columns), strict=True):
        wanted = (*found.texts, found.label)
        for row in scan_table(path, wanted, limit=limit, progress=progress, loose=found.label):
            yield row if isinstance(row, BadLine) else _labelled(row[1], path, row[0], found.multi_label)


def _labelled(cells: Sequence[str], path: Path, line: int, several: bool) -> LabelledText | BadLine:
    *texts, label = (" ".join(cell.split()) for cell in cells)
    labels = tuple(dict.fromkeys(part for each in BETWEEN.split(label) if (part := each.strip()))) if several else ()
    if not all(texts):
        return BadLine("blank", path, line, "the text is blank")
    if not several and not label:
        return BadLine("malformed", path, line, "the label is empty: give the text one, or take the row out")
    return LabelledText(tuple(texts), labels if several else (label,), path, line)


def read_labelled(
    files: Files,
    *,
    columns: Sequence[str] = (),
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[LabelledText]:
    """The usable labelled texts; what is left out is counted in `dropped`."""
    is_empty = True
    for row in scan_labelled(files, columns=columns, progress=progress):
        if isinstance(row, BadLine):
            handle_bad_line(row, on_bad_line, dropped)
        else:
            is_empty = False
            yield row
    if is_empty:
        raise DataError(f"no usable text in {', '.join(map(str, as_paths(files)))}")
