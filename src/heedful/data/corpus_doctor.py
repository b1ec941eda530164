"""The corpus doctor: examine a corpus for issues, and write a clean copy of it."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from heedful.data.column_names import TEXT, pair_columns
from heedful.data.corpus_files import Files, as_paths, expand_folders, size_on_disk
from heedful.data.corpus_readers import DocumentLine, is_aligned, is_text_table, require_columns
from heedful.data.corpus_scan import CorpusRow, CorpusScan
from heedful.data.doctor_report import CleanCopy, CorpusKind, CorpusReport, Finding
from heedful.data.held_out_checks import held_out_findings, refuse_swapped
from heedful.data.labeled_reader import find_columns, has_labels
from heedful.data.line_reader import BadLine, OnBadLine
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.qa_reader import (
    QUESTION_COLUMNS,
    Question,
    format_questions,
    has_questions,
    question_cells,
)
from heedful.data.table_layout import file_format, is_table, read_layout
from heedful.data.table_reader import LIST_SEPARATOR, holds_categories
from heedful.errors import DataError, UsageError
from heedful.files import new_folder, require_empty

Kind = Literal["auto"] | CorpusKind

BREAKS = re.compile(r"[\t\r\n]+")
"""Characters that would end a cell or a row of a tab-separated table."""
DROPPED = {
    "pairs": ("duplicate", "leak", "copy", "ratio", "script"),
    "labeled": ("duplicate", "leak"),
    "questions": ("duplicate", "leak"),
    "text": ("duplicate", "leak"),
}
"""Issues that a clean copy drops besides bad lines. From prose none: a missing line would break the running text."""


def examine(
    files: Files,
    *,
    clean_copy: str | PathLike[str] | None = None,
    against: Files | None = None,
    kind: Kind = "auto",
    on_bad_line: OnBadLine = "skip",
    max_measured: int | None = None,
    columns: Sequence[str] = (),
    start_progress: StartProgress = no_progress,
) -> CorpusReport:
    """Read a corpus once and report its sizes and issues. `against` names held-out files, which must not occur in it.

    Unless `kind` is given, SQuAD files and tables of questions are questions, a table with texts and labels is
    labeled, two text files or other tables are pairs, and anything else is running text. With `max_measured`, only
    that many rows are measured, and memory is bounded. `columns` are the names or numbers of the columns to read.

    `clean_copy` is a new folder for a copy with the same file names. Pairs lose bad lines, duplicates, leaks, copies
    and outliers; records, labeled texts and questions lose bad lines, duplicates and leaks; prose only lines that
    cannot be read. Tables keep their format, and those of their columns that are read.
    """
    if clean_copy is not None:
        require_empty(Path(clean_copy).absolute())
    paths = as_paths(files)
    require_columns(paths, columns)
    corpus_kind = detect_corpus_kind(paths, columns) if kind == "auto" else kind
    held_out = _scan_held_out(against, corpus_kind, on_bad_line, columns, start_progress) if against else []
    hashes = np.setdiff1d(np.concatenate([scan.statistics.keys for scan in held_out]), [0]) if held_out else None
    expanded = expand_folders(paths) if corpus_kind == "text" else paths
    scan = CorpusScan(corpus_kind, expanded, on_bad_line, hashes, max_measured, columns)
    with start_progress("reading", size_on_disk(paths)) as progress:
        scan.read(progress)
    findings: list[Finding] = []
    for test in held_out:
        refuse_swapped(scan.files[0], scan.text_columns, test.files[0], test.text_columns)
        findings += held_out_findings(scan.column_names, scan.files, scan.text_columns, test.files, test.text_columns)
    if not scan.usable:
        reasons = ", ".join(f"{count:,} {kind}" for kind, count in scan.bad_lines.items())
        raise DataError(f"nothing usable in {', '.join(map(str, paths))}" + (f": {reasons}" if reasons else ""))
    report = scan.report()
    report = report.with_changes(findings=(*report.findings, *findings))
    if clean_copy is None:
        return report
    cleaned: CorpusReport = report.with_changes(
        cleaned=_write_clean_copy(scan, Path(clean_copy).absolute(), start_progress)
    )
    return cleaned


def _write_clean_copy(scan: CorpusScan, folder: Path, start_progress: StartProgress) -> CleanCopy:
    if scan.misaligned:
        raise DataError(f"{scan.misaligned}; nothing was written, because it is unknown where they diverge")
    names = _relative_names(scan.files)
    rows = _RowFilter(scan)
    aligned = scan.kind == "pairs" and is_aligned(scan.files)
    groups = [slice(0, len(names))] if aligned else [slice(n, n + 1) for n, _ in enumerate(names)]
    try:
        with new_folder(folder) as temporary, start_progress("writing", size_on_disk(scan.files)) as progress:
            for group in groups:
                _write_rows(scan, rows, scan.files[group], [temporary / name for name in names[group]], progress)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    return CleanCopy(folder=str(folder), files=tuple(map(str, names)), kept=rows.kept, dropped=dict(+rows.dropped))


def detect_corpus_kind(paths: Sequence[Path], columns: Sequence[str] = ()) -> CorpusKind:
    """Detect labeled texts, questions, pairs or running text by the files' names, columns and number."""
    if any(path.is_dir() for path in paths):
        return "text"
    if paths and all(file_format(path) == "tmx" for path in paths):
        return "pairs"
    if paths and all(map(has_questions, paths)):
        return "questions"
    if not (paths and all(map(is_table, paths))):
        return "pairs" if [file_format(path) for path in paths] == ["lines", "lines"] else "text"
    if columns:
        return _kind_of_columns(paths[0], columns)
    if all(map(has_labels, paths)):
        return "labeled"
    names = read_layout(paths[0]).names
    has_text = any(name in TEXT for name in names) and (len(names) == 1 or pair_columns(names) is None)
    return "text" if "text" in names or has_text else "pairs"


def _kind_of_columns(path: Path, columns: Sequence[str]) -> CorpusKind:
    """Infer the kind of corpus from the requested columns: one of text, or with few values in the last, of labels."""
    if len(columns) == 1:
        return "text"
    if holds_categories(read_layout(path, columns), columns[-1]):
        return "labeled"
    return "pairs" if len(columns) == 2 else "questions"


def _scan_held_out(
    files: Files, kind: CorpusKind, on_bad_line: OnBadLine, columns: Sequence[str], start_progress: StartProgress
) -> list[CorpusScan]:
    """Read held-out files, so that their sources or long lines can be looked up among the others."""
    paths = expand_folders(files) if kind == "text" else as_paths(files)
    scans = []
    for group in _group_pairs(paths) if kind == "pairs" else [paths]:
        scan = CorpusScan(kind, group, on_bad_line, columns=columns)
        with start_progress("reading held-out files", size_on_disk(group)) as progress:
            scan.read(progress)
        if scan.misaligned:
            raise DataError(scan.misaligned)
        scans.append(scan)
    return scans


def _group_pairs(paths: Sequence[Path]) -> list[list[Path]]:
    """Group the files of several test sets: one table each, or two line files."""
    groups: list[list[Path]] = []
    for path in paths:
        if groups and len(groups[-1]) == 1 and not (is_table(path) or file_format(path) == "tmx"):
            groups[-1].append(path)
        else:
            groups.append([path])
    return groups


class _RowFilter:
    """Selects the rows that a clean copy keeps, in one pass over the same files; counts the others by reason."""

    def __init__(self, scan: CorpusScan) -> None:
        self.scan, self.masks = scan, scan.issue_masks()
        self.kept = self.position = 0
        self.dropped = Counter(scan.bad_lines)
        if scan.kind == "text":
            del self.dropped["blank"]  # blank lines between paragraphs are kept, and not counted as rows

    def select(self, rows: Iterator[CorpusRow | BadLine], issues: Sequence[str]) -> Iterator[CorpusRow]:
        """Yield the rows without these issues. A row with two issues is counted under the first."""
        numbers = np.zeros(len(self.scan.statistics), np.uint8)
        for number in range(len(issues), 0, -1):
            if issues[number - 1] in self.masks:
                numbers[self.masks[issues[number - 1]]] = number
        reasons = numbers.tobytes()
        for row in rows:
            if isinstance(row, BadLine):
                self.dropped["blank"] += self.scan.kind == "text" and row.kind == "blank"
                continue
            if not isinstance(row, DocumentLine) or row.text.strip():
                if self.position >= len(reasons):
                    raise DataError(f"{', '.join(map(str, self.scan.files))} changed while being read")
                reason = reasons[self.position]
                self.position += 1
                if reason:
                    self.dropped[issues[reason - 1]] += 1
                    continue
            self.kept += 1
            yield row


def _write_rows(
    scan: CorpusScan, selection: _RowFilter, files: Sequence[Path], outputs: Sequence[Path], progress: ProgressCallback
) -> None:
    """Write the rows of these files that are kept: to two aligned files, or to one."""
    names, cells = _columns(scan, files[0])
    is_prose = scan.kind == "text" and not is_text_table(files[0], scan.columns)
    rows = selection.select(scan.scan(files, progress), () if is_prose else DROPPED[scan.kind])
    with ExitStack() as stack:
        if scan.kind == "questions" and file_format(files[0]) not in ("tsv", "csv"):
            questions = [row for row in rows if isinstance(row, Question)]
            stack.enter_context(_create(outputs[0])).writelines(format_questions(questions, outputs[0]))
            return
        writers = [_row_writer(stack, output, names if len(outputs) == 1 else ("text",)) for output in outputs]
        for row in rows:
            parts = [cells(row)] if len(writers) == 1 else [(cell,) for cell in cells(row)]
            for write, part in zip(writers, parts, strict=True):
                write(part)


def _columns(scan: CorpusScan, file: Path) -> tuple[tuple[str, ...], Callable[[Any], tuple[str, ...]]]:
    """The names of the columns of a copy, and a function from a row to its cells."""
    match scan.kind:
        case "pairs":
            return ("source", "target"), lambda pair: pair[:2]
        case "labeled":
            columns = find_columns(file, scan.columns)
            numbered = columns.label.isdecimal()
            usual = ("text_a", "text_b", "label") if len(columns.texts) == 2 else ("text", "label")
            names = usual if numbered else (*columns.texts, columns.label)
            return names, lambda row: (*row.texts, LIST_SEPARATOR.join(row.labels))
        case "questions":
            return QUESTION_COLUMNS, question_cells
        case "text" if is_text_table(file, scan.columns):
            return ("text",), lambda row: (row.text,)
        case "text":
            return ("text",), lambda line: (line.text.removesuffix("\n"),)


def _row_writer(stack: ExitStack, path: Path, columns: tuple[str, ...]) -> Callable[[Sequence[str]], object]:
    """A function that writes one row to a new file, in the format of the file's name."""
    file = stack.enter_context(_create(path))
    kind = file_format(path)
    if kind == "jsonl":
        return lambda cells: file.write(json.dumps(dict(zip(columns, cells, strict=True)), ensure_ascii=False) + "\n")
    if kind == "csv":
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        return table.writerow
    if kind == "tsv" or len(columns) > 1:
        file.write("\t".join(columns) + "\n")
        return lambda cells: file.write("\t".join(BREAKS.sub(" ", cell) for cell in cells) + "\n")
    return lambda cells: file.write(cells[0] + "\n")


def _create(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    stream: IO[str] = opener(path, "xt", encoding="utf-8", newline="\n")
    return stream


def _relative_names(files: Sequence[Path]) -> list[Path]:
    """File names in the copy, with as many parent folders as make them unique."""
    paths = [path.absolute() for path in files]
    common = os.path.commonpath([path.parent for path in paths])
    return [_copied_name(path.relative_to(common)) for path in paths]


def _copied_name(path: Path) -> Path:
    """The name of a copy: a .tmx is copied as .tsv."""
    return path.with_name(path.name.replace(".tmx", ".tsv")) if file_format(path) == "tmx" else path
