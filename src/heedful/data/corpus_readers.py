"""Corpora as streams: pairs of sentences, documents, and sentences of documents.

    pairs       two line-aligned files; or tables (.tsv, .csv, .jsonl, tabs in a .txt) and translation memories (.tmx)
    documents   text files, folders of them, or tables with a column of text

All may be plain, .gz or .xz. Only the current lines are held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeVar, Unpack

from heedful.data.column_names import LABEL, LABELS, TEXT
from heedful.data.corpus_files import Files, as_paths, expand_folders
from heedful.data.line_reader import BadLine, OnBadLine, handle_bad_line, scan_lines
from heedful.data.progress import ProgressCallback
from heedful.data.table_layout import TABLES, TableLayout, file_format, is_table, read_layout
from heedful.data.table_reader import Cells, check_columns, choose_pair, describe_columns, quoted_names, scan_table
from heedful.data.tmx_reader import choose_languages, scan_tmx
from heedful.errors import DataError
from heedful.syntax import argument
from heedful.text.sentence_splitter import split_sentences

Row = TypeVar("Row")
Scan = Callable[..., Iterator[Row | BadLine]]
"""Yields every row of files in order, the unusable ones as `BadLine`; takes `progress`."""
Columns = Sequence[str]
"""Names of columns, or their numbers from 1; the languages of a .tmx. Empty: the usual ones."""


class Pair(NamedTuple):
    """A sentence and its translation, stripped of white space; `path` is that of the source, `line` counts from 1."""

    source: str
    target: str
    path: Path
    line: int


class DocumentLine(NamedTuple):
    """A line of a document with its newline, or a whole record."""

    text: str
    ends_document: bool
    path: Path
    line: int


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of the functions that read the usable rows of files."""

    on_bad_line: OnBadLine
    """"fail", the default, raises DataError at a line that cannot be used; a blank line is left out in any case."""
    dropped: Counter[str]
    """Counts the rows left out, by kind of bad line."""
    progress: ProgressCallback | None


def read_pairs(files: Files, *, columns: Columns = (), **options: Unpack[ReadOptions]) -> Iterator[Pair]:
    """Yield the usable pairs of two line-aligned files, or of tables and translation memories."""
    return usable_rows("pair", partial(scan_pairs, columns=columns), files, **options)


def read_documents(
    files: Files, *, columns: Columns = (), **options: Unpack[ReadOptions]
) -> Iterator[tuple[str, bool]]:
    """Yield the text line by line, exact but for CRLF and byte order marks, and whether its document ends there."""
    for line in usable_rows("text", partial(scan_documents, columns=columns), files, **options):
        yield line.text, line.ends_document


def read_sentences(
    files: Files, *, columns: Columns = (), **options: Unpack[ReadOptions]
) -> Iterator[tuple[str, bool]]:
    """Yield documents sentence by sentence, and whether the document ends there: at a blank line, file or record end.

    A sentence keeps the blanks before it, and the last of a line those after it with following blank lines: joined,
    the sentences are the text, except for blank lines at its start.
    """
    sentence, is_last = "", False
    for text, ends_document in read_documents(files, columns=columns, **options):
        if not text.strip():
            sentence, is_last = sentence and sentence + text, True
        else:
            for following in _sentences(text):
                if sentence:
                    yield sentence, is_last
                sentence, is_last = following, False
        if ends_document and sentence:
            yield sentence, True
            sentence, is_last = "", False


def _sentences(text: str) -> Iterator[str]:
    before, segments = "", split_sentences(text)
    for number, (words, gap) in enumerate(segments, 1):
        if words:
            yield before + words + (gap if number == len(segments) else "")
        before = gap if words else before + gap


def scan_pairs(
    files: Files, *, columns: Columns = (), progress: ProgressCallback | None = None
) -> Iterator[Pair | BadLine]:
    """Yield every pair in order, the unusable ones as `BadLine`."""
    paths = as_paths(files)
    groups = [paths] if is_aligned(paths) else [[path] for path in paths]
    for group in groups:
        for row in _pair_rows(group, columns, progress):
            if isinstance(row, BadLine):
                yield row
                continue
            line, (source, target) = row
            source, target = source.strip(), target.strip()
            if source and target:
                yield Pair(source, target, group[0], line)
            else:
                yield BadLine("blank", group[-1 if source else 0], line, "the line is blank")


def scan_documents(
    files: Files, *, columns: Columns = (), progress: ProgressCallback | None = None
) -> Iterator[DocumentLine | BadLine]:
    """Yield every line or record in order, the unusable ones as `BadLine`. A file is a document, and so is a record."""
    for path in expand_folders(files):
        if is_text_table(path, columns):
            yield from _records(path, columns, progress)
        else:
            yield from _document(path, progress)


def is_aligned(paths: Sequence[Path]) -> bool:
    """Whether these are two line-aligned text files, rather than tables; raise DataError if they are neither."""
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder: a file is needed here")
        if not path.exists():
            raise DataError(f"{path}: no such file")
    tables = [file_format(path) == "tmx" or is_table(path) for path in paths]
    if tables and all(tables):
        return False
    if len(paths) == 2 and not any(tables):
        return True
    formats = "two line-aligned text files, or with both sides in one .tsv, .csv, .jsonl, .tmx or tab-separated .txt"
    raise DataError(f"pairs come as {formats}; got {_names(paths)}{_format_hint(paths)}")


def _format_hint(paths: Sequence[Path]) -> str:
    """A hint for files whose format is not clear from their names."""
    if any(path.suffix == ".json" for path in paths):
        return ": write one object a line to a .jsonl (jq -c '.[]')"
    if len(paths) != 1:
        return ""
    start = "".join(line for line in islice(scan_lines(paths[0]), 5) if isinstance(line, str))
    if start.startswith("{"):
        return ", which begins like JSON: name it .jsonl"
    if "<tmx" in start:
        return ", which is a translation memory: name it .tmx"
    return (
        ", without tabs: name its other side too, or, if commas, semicolons or bars separate them, name the file .csv"
    )


def is_text_table(path: Path, columns: Columns = ()) -> bool:
    """Whether running text is read from a column; tabs in a .txt are text unless a column is requested."""
    return file_format(path) in TABLES or bool(columns and is_table(path))


def text_column(layout: TableLayout, columns: Columns = ()) -> str:
    """The column of running text: the one requested, the one with a usual name, or the only one."""
    if columns:
        if len(columns) > 1:
            raise DataError(f"{layout.path}: running text has one column, got {argument('columns', ','.join(columns))}")
        return columns[0]
    if names := [name for name in TEXT if name in layout.names]:
        return names[0]
    if not layout.sample:
        return "text"
    if (layout.width or len(layout.names)) == 1:
        return layout.names[0] if layout.names else "1"
    header = layout.names or layout.sample[0]
    raise DataError(
        f"{layout.path} has no column 'text'; columns found: {quoted_names(header)}; name one of them, or its number "
        f"({argument('columns')})"
    )


def require_columns(files: Files, columns: Columns) -> None:
    """Raise DataError where columns are requested of files that have none."""
    if columns and not has_tables(files):
        raise DataError(f"{argument('columns', ','.join(columns))}: there are no columns in {_names(files)}")


def has_tables(files: Files) -> bool:
    """Whether any of the files has columns, or languages, to choose from."""
    return any(file_format(path) == "tmx" or is_table(path) for path in expand_folders(files))


def has_columns(files: Files, columns: Columns) -> bool:
    """Whether every table among the files has these columns. Numbers do not apply to a table with usual names."""
    try:
        for path in expand_folders(files):
            if file_format(path) == "tmx":
                choose_languages(path, columns)
            elif is_table(path):
                layout = read_layout(path, columns)
                check_columns(layout, columns)
                if all(name.isdecimal() for name in columns) and _has_usual_names(layout.names, len(columns)):
                    return False
    except DataError:
        return False
    return bool(columns)


def _has_usual_names(names: Sequence[str], columns: int) -> bool:
    """Whether a header alone determines which columns to read; `columns`: their number."""
    has_text, has_labels = (any(name in usual for name in names) for usual in (TEXT, (*LABEL, *LABELS)))
    return {"source", "target"} <= set(names) or (has_text and (columns == 1 or has_labels))


def describe_layout(files: Files, kind: str, columns: Columns = ()) -> list[str]:
    """Describe, for each table of pairs or running text, the columns that are read."""
    descriptions = []
    for path in expand_folders(files):
        if kind == "pairs" and file_format(path) == "tmx":
            descriptions.append(f"{path.name}: {' and '.join(choose_languages(path, columns))}")
        elif (kind == "pairs" and is_table(path)) or (kind == "text" and is_text_table(path, columns)):
            layout = read_layout(path, columns)
            read = choose_pair(layout, columns) if kind == "pairs" else (text_column(layout, columns),)
            descriptions.append(f"{path.name}: {describe_columns(layout, read)}")
    return descriptions


def usable_rows(
    noun: str,
    scan: Scan[Row],
    files: Files,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[Row]:
    """Yield the usable rows; raise at the others or count them by kind, and raise if none is usable."""
    dropped = Counter() if dropped is None else dropped
    is_empty = True
    for row in scan(files, progress=progress):
        if isinstance(row, BadLine):
            handle_bad_line(row, on_bad_line, dropped)
        else:
            is_empty = False
            yield row
    if is_empty:
        reasons = ", ".join(f"{count:,} {kind}" for kind, count in dropped.items())
        raise DataError(f"no usable {noun} in {_names(files)}" + (f" (left out: {reasons})" if reasons else ""))


def in_blocks(
    rows: Iterator[Row], characters: Callable[[Row], int], max_rows: int, max_characters: int
) -> Iterator[list[Row]]:
    """Group rows into blocks; one ends at the row that reaches either limit."""
    block: list[Row] = []
    size = 0
    for row in rows:
        block.append(row)
        size += characters(row)
        if len(block) == max_rows or size >= max_characters:
            yield block
            block, size = [], 0
    if block:
        yield block


def _pair_rows(paths: Sequence[Path], columns: Columns, progress: ProgressCallback | None) -> Iterator[Cells | BadLine]:
    if len(paths) == 2:
        return _aligned(paths[0], paths[1], progress)
    if file_format(paths[0]) == "tmx":
        return scan_tmx(paths[0], columns, progress=progress)
    layout = read_layout(paths[0], columns)
    return scan_table(layout, choose_pair(layout, columns), progress=progress)


def _aligned(source: Path, target: Path, progress: ProgressCallback | None) -> Iterator[Cells | BadLine]:
    source_lines, target_lines = (scan_lines(path, progress=progress) for path in (source, target))
    for number, (left, right) in enumerate(zip_longest(source_lines, target_lines), 1):
        if left is None or right is None:
            shorter, longer = number - 1, number + sum(1 for _ in (target_lines if left is None else source_lines))
            counts = (shorter, longer) if left is None else (longer, shorter)
            message = f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}: they must pair line by line, "
            message += "or a model learns wrong translations; are both of the same set?"
            yield BadLine("misaligned", source, number, message)
        elif isinstance(left, BadLine):
            yield left
        elif isinstance(right, BadLine):
            yield right
        else:
            yield number, (left, right)


def _document(path: Path, progress: ProgressCallback | None) -> Iterator[DocumentLine | BadLine]:
    """Yield the lines of a file, each held back until the next, so that the last usable one is marked as last."""
    held: DocumentLine | None = None
    for number, line in enumerate(scan_lines(path, progress=progress), 1):
        if isinstance(line, BadLine):
            yield line
            continue
        if held is not None:
            yield held
        held = DocumentLine(line, False, path, number)
    if held is not None:
        yield held._replace(ends_document=True)


def _records(path: Path, columns: Columns, progress: ProgressCallback | None) -> Iterator[DocumentLine | BadLine]:
    layout = read_layout(path, columns)
    for row in scan_table(layout, (text_column(layout, columns),), progress=progress):
        if isinstance(row, BadLine):
            yield row
        elif row[1][0].strip():
            yield DocumentLine(row[1][0].replace("\r\n", "\n"), True, path, row[0])
        else:
            yield BadLine("blank", path, row[0], "the text is blank")


def _names(files: Files) -> str:
    return ", ".join(str(path) for path in as_paths(files)) or "no files"
