"""Text as people keep it, as a stream: pairs of sentences, and documents.

    pairs       two line-aligned files, or one .tsv, .csv or .jsonl
    documents   text files, folders of them, or tables with a `text` column

Each of them plain, .gz or .xz. Nothing is held in memory but the lines at hand.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeVar

from heedful.data.line_reader import MAX_LINE, BadLine, OnBadLine, handle_bad_line, read_lines, scan_lines
from heedful.data.progress import ProgressCallback
from heedful.data.table_reader import COMPRESSED, TABLES, Row, file_format, scan_table
from heedful.errors import DataError

__all__ = ["Pair", "content_hash", "is_held_out", "read_documents", "read_lines", "read_pairs"]

Files = Sequence[str | PathLike[str]]
IN_FOLDERS = (".txt", ".jsonl", *COMPRESSED)
Taken = TypeVar("Taken")


class Pair(NamedTuple):
    """A sentence and its translation, without white space around them; `line` is where they stand, from 1."""

    source: str
    target: str
    line: int


class DocumentLine(NamedTuple):
    """A line of a document with its newline, or a whole record; `ends` says that the document ends here."""

    text: str
    ends_document: bool
    path: Path
    line: int


def read_pairs(
    files: Files,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    limit: int = MAX_LINE,
    progress: ProgressCallback | None = None,
) -> Iterator[Pair]:
    """The usable pairs of two line-aligned files or one table; what is left out is counted in `dropped`."""
    yield from usable_rows("pair", files, scan_pairs(files, limit=limit, progress=progress), on_bad_line, dropped)


def read_documents(
    files: Files,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    limit: int = MAX_LINE,
    progress: ProgressCallback | None = None,
) -> Iterator[tuple[str, bool]]:
    """The text piece by piece, exact but for CRLF and byte order marks, and whether its document ends there."""
    for piece in usable_rows("text", files, scan_documents(files, limit=limit, progress=progress), on_bad_line, dropped):
        yield piece.text, piece.ends_document


def is_held_out(source: str, share: float) -> bool:
    """Whether a sentence belongs to the held-out part: by its content, so it never stands on both sides."""
    digest = hashlib.blake2b(source.encode(), digest_size=8, person=b"held out").digest()
    return int.from_bytes(digest, "big") < share * 2**64


def content_hash(files: Files) -> str:
    """SHA-256 of what the files hold and how it is read, in order; their places and dates play no part."""
    total = hashlib.sha256()
    for path in expand_folders(files):
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest() + file_format(path).encode())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
    return total.hexdigest()


def scan_pairs(files: Files, *, limit: int = MAX_LINE, progress: ProgressCallback | None = None) -> Iterator[Pair | BadLine]:
    """Every pair in order, the unusable ones as faults in their places."""
    paths = as_paths(files)
    for row in _pair_rows(paths, limit, progress):
        if isinstance(row, BadLine):
            yield row
            continue
        line, (source, target) = row
        source, target = source.strip(), target.strip()
        if source and target:
            yield Pair(source, target, line)
        else:
            yield BadLine("blank", paths[-1 if source else 0], line, "the line is blank")


def scan_documents(files: Files, *, limit: int = MAX_LINE, progress: ProgressCallback | None = None) -> Iterator[DocumentLine | BadLine]:
    """Every line or record in order, the unusable ones as faults. A file is a document, and so is a record."""
    for path in expand_folders(files):
        yield from (_records if file_format(path) in TABLES else _document)(path, limit, progress)


def as_paths(files: Files | str | PathLike[str]) -> list[Path]:
    """Paths from names; one name alone will do."""
    return [Path(files)] if isinstance(files, str | PathLike) else [Path(file) for file in files]


def expand_folders(files: Files) -> list[Path]:
    """The files meant: a folder stands for the text files in it that hold anything, in the order of their names."""
    found: list[Path] = []
    for path in as_paths(files):
        inside = _inside(path) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path} is a folder without text files ({', '.join(IN_FOLDERS)})")
        found += inside
    return found


def size_on_disk(files: Files) -> int:
    """Bytes that reading these files will take from the disk; what is wrong with them is said by whoever reads."""
    found = [file for path in as_paths(files) for file in (_inside(path) if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in found if file.is_file())


def _inside(folder: Path) -> list[Path]:
    named = (file for file in sorted(folder.rglob("*")) if file.suffix.lower() in IN_FOLDERS and file.is_file())
    seen = (file for file in named if not any(part.startswith(".") for part in file.relative_to(folder).parts))
    return [file for file in seen if file.stat().st_size]


def usable_rows(
    what: str, files: Files, rows: Iterator[Taken | BadLine], on_bad_line: OnBadLine, dropped: Counter[str] | None
) -> Iterator[Taken]:
    """What can be used of the rows. The rest is counted by kind, or stops the work; nothing at all does."""
    dropped = Counter() if dropped is None else dropped
    is_empty = True
    for row in rows:
        if isinstance(row, BadLine):
            handle_bad_line(row, on_bad_line, dropped)
        else:
            is_empty = False
            yield row
    if is_empty:
        why = ", ".join(f"{count:,} {kind}" for kind, count in dropped.items())
        raise DataError(f"no usable {what} in {_names(files)}" + (f" (left out: {why})" if why else ""))


def _pair_rows(paths: Sequence[Path], limit: int, progress: ProgressCallback | None) -> Iterator[Row | BadLine]:
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder: a file is needed here")
    kinds = [file_format(path) for path in paths]
    if len(paths) == 1 and kinds[0] in TABLES:
        return scan_table(paths[0], ("source", "target"), limit=limit, progress=progress)
    if kinds == ["lines", "lines"]:
        return _aligned(paths[0], paths[1], limit, progress)
    raise DataError(f"pairs come as two line-aligned text files or as one .tsv, .csv or .jsonl; got {_names(paths)}")


def _aligned(source: Path, target: Path, limit: int, progress: ProgressCallback | None) -> Iterator[Row | BadLine]:
    ours, theirs = (scan_lines(path, limit=limit, progress=progress) for path in (source, target))
    for number, (left, right) in enumerate(zip_longest(ours, theirs), 1):
        if left is None or right is None:
            longer, shorter = number + sum(1 for _ in (theirs if left is None else ours)), number - 1
            lines = (shorter, longer) if left is None else (longer, shorter)
            what = f"{source} has {lines[0]:,} lines but {target} has {lines[1]:,}: they must pair line by line"
            yield BadLine("misaligned", source, number, what)
        elif isinstance(left, BadLine):
            yield left
        elif isinstance(right, BadLine):
            yield right
        else:
            yield number, (left, right)


def _document(path: Path, limit: int, progress: ProgressCallback | None) -> Iterator[DocumentLine | BadLine]:
    """The lines of a file, one behind, so that the last sound one can say that it is the last."""
    held: DocumentLine | None = None
    for number, line in enumerate(scan_lines(path, limit=limit, progress=progress), 1):
        if isinstance(line, BadLine):
            yield line
            continue
        if held is not None:
            yield held
        held = DocumentLine(line, False, path, number)
    if held is not None:
        yield held._replace(ends=True)


def _records(path: Path, limit: int, progress: ProgressCallback | None) -> Iterator[DocumentLine | BadLine]:
    for row in scan_table(path, ("text",), limit=limit, progress=progress):
        if isinstance(row, BadLine):
            yield row
        elif row[1][0].strip():
            yield DocumentLine(row[1][0].replace("\r\n", "\n"), True, path, row[0])
        else:
            yield BadLine("blank", path, row[0], "the text is blank")


def _names(files: Files) -> str:
    return ", ".join(str(path) for path in as_paths(files)) or "no files"
