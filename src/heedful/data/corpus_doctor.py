"""The doctor: what a corpus holds, what is wrong with it and where, and a clean copy on request."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Literal

import numpy as np

from heedful.data.corpus_readers import Files, as_paths, scan_documents, scan_pairs, size_on_disk, expand_folders
from heedful.data.corpus_scan import CorpusScan
from heedful.data.doctor_report import CleanCopy, CorpusKind, CorpusReport
from heedful.data.labelled_reader import find_columns, has_labels, scan_labelled
from heedful.data.line_reader import MAX_LINE, BadLine, OnBadLine
from heedful.data.qa_reader import has_questions, scan_questions, format_questions
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.table_reader import LIST_SEPARATOR, TABLES, file_format, table_columns
from heedful.errors import DataError, UsageError
from heedful.files import new_folder, require_empty

Kind = Literal["auto"] | CorpusKind

DROPPED = {
    "pairs": ("duplicate", "leak", "copy", "ratio", "script"),
    "labelled": ("duplicate", "leak"),
    "questions": ("duplicate", "leak"),
    "records": ("duplicate", "leak"),
    "lines": (),
}
"""What a clean copy leaves out besides faults. From prose nothing: a line gone would tear a hole into it."""


def examine(
    files: Files,
    *,
    against: Files | None = None,
    kind: Kind = "auto",
    on_bad_line: OnBadLine = "skip",
    limit: int = MAX_LINE,
    max_measured: int | None = None,
    columns: Sequence[str] = (),
    start_progress: StartProgress = no_progress,
) -> CorpusReport:
    """Read a corpus once and say what it holds. `against` names held-out files, which must not occur in it.

    SQuAD files and tables of questions are questions, a table with texts and labels is labelled, two text files or
    another table are pairs, and anything else is running text, unless `kind` says otherwise. With `most`, only so many
    rows are measured, and memory is bounded. `columns` are those of labelled texts.
    """
    return _read(files, against, kind, on_bad_line, limit, start_progress, max_measured, columns).report()


def clean(
    files: Files,
    folder: str | PathLike[str],
    *,
    against: Files | None = None,
    kind: Kind = "auto",
    on_bad_line: OnBadLine = "skip",
    limit: int = MAX_LINE,
    columns: Sequence[str] = (),
    start_progress: StartProgress = no_progress,
) -> CorpusReport:
    """Write a clean copy of a corpus into a new folder, under the same names; `cleaned` says what was left out.

    From pairs go faults, duplicates, leaks, copies and outliers; from records, labelled texts and questions faults,
    duplicates and leaks; from prose only lines that cannot be read. Tables keep their format, and of their columns
    those that are read.
    """
    out = Path(folder).absolute()
    require_empty(out)
    reading = _read(files, against, kind, on_bad_line, limit, start_progress, None, columns)
    if reading.misaligned:
        raise DataError(f"{reading.misaligned}; there is no telling where they part, so nothing was written")
    dropped = Counter(reading.faults)
    with _cleaned_folder(out) as aside:
        names = _names(reading.files)
        ways = {"pairs": _write_pairs, "text": _write_text, "labelled": _write_labelled, "questions": _write_questions}
        write = ways[reading.kind]
        with start_progress("writing", size_on_disk(reading.files)) as progress:
            kept = write(reading, [aside / name for name in names], dropped, progress)
    cleaned = CleanCopy(folder=str(out), files=tuple(map(str, names)), kept=kept, dropped=dict(+dropped))
    report: CorpusReport = reading.report().with_changes(cleaned=cleaned)
    return report


def _read(
    files: Files,
    against: Files | None,
    kind: Kind,
    on_bad_line: OnBadLine,
    limit: int,
    start_progress: StartProgress,
    most: int | None = None,
    columns: Sequence[str] = (),
) -> CorpusScan:
    paths = as_paths(files)
    found = detect_corpus_kind(paths) if kind == "auto" else kind
    held_out = _held_out(against, found, on_bad_line, start_progress, columns) if against else []
    hashes = np.setdiff1d(np.concatenate([each.statistics.keys for each in held_out]), [0]) if held_out else None
    files = expand_folders(paths) if found == "text" else paths
    reading = CorpusScan(found, files, on_bad_line, limit, hashes, most, columns)
    with start_progress("reading", size_on_disk(paths)) as progress:
        reading.read(progress)
    for each in held_out:
        _refuse_swapped(reading, each)
    if not reading.usable:
        why = ", ".join(f"{count:,} {kind}" for kind, count in reading.faults.items())
        raise DataError(f"nothing usable in {', '.join(map(str, paths))}" + (f": {why}" if why else ""))
    return reading


def detect_corpus_kind(paths: Sequence[Path]) -> CorpusKind:
    """Labelled texts, questions, pairs or running text, by the files' names, columns and number."""
    if any(path.is_dir() for path in paths):
        return "text"
    if paths and all(map(has_questions, paths)):
        return "questions"
    if paths and all(file_format(path) in TABLES and has_labels(path) for path in paths):
        return "labelled"
    if len(paths) == 1 and file_format(paths[0]) in TABLES:
        return "text" if "text" in table_columns(paths[0]) else "pairs"
    return "pairs" if [file_format(path) for path in paths] == ["lines", "lines"] else "text"


def _held_out(
    files: Files, kind: CorpusKind, on_bad_line: OnBadLine, start_progress: StartProgress, columns: Sequence[str]
) -> list[CorpusScan]:
    """Held-out files read, so that their sources or long lines can be looked for among the others."""
    found = []
    groups = {"text": lambda: [expand_folders(files)], "pairs": lambda: _pairs_of(as_paths(files))}
    for group in groups.get(kind, lambda: [as_paths(files)])():
        reading = CorpusScan(kind, group, on_bad_line, columns=columns)
        with start_progress("reading what is held out", size_on_disk(group)) as progress:
            reading.read(progress)
        if reading.misaligned:
            raise DataError(reading.misaligned)
        found.append(reading)
    return found


def _refuse_swapped(reading: CorpusScan, held_out: CorpusScan) -> None:
    """Source and target the other way round, where their scripts give it away."""
    ours, theirs = ([column.script for column in each.statistics.columns] for each in (reading, held_out))
    if ours != theirs and ours == theirs[::-1]:
        what = f"{held_out.files[0]} is {theirs[0]}, but {reading.files[0]} is {ours[0]}"
        raise DataError(f"{what}: are the files in the wrong order?")


def _pairs_of(paths: Sequence[Path]) -> list[list[Path]]:
    """Several test sets at once: tables stand alone, line files go two by two."""
    groups: list[list[Path]] = []
    for path in paths:
        if groups and len(groups[-1]) == 1 and file_format(groups[-1][0]) not in TABLES:
            groups[-1].append(path)
        else:
            groups.append([path])
    return groups


def _write_pairs(reading: CorpusScan, outputs: Sequence[Path], dropped: Counter[str], progress: ProgressCallback) -> int:
    reasons = _reasons(reading, DROPPED["pairs"])
    kept = row = 0
    with ExitStack() as stack:
        writers = [_writer(stack, path, ("source", "target")) for path in outputs]
        for pair in scan_pairs(reading.files, limit=reading.limit, progress=progress):
            if isinstance(pair, BadLine):
                continue
            if reason := reasons(row):
                dropped[reason] += 1
            else:
                kept += 1
                cells = [pair[:2]] if len(writers) == 1 else [(pair.source,), (pair.target,)]
                for write, cell in zip(writers, cells, strict=True):
                    write(cell)
            row += 1
    return kept


def _write_labelled(reading: CorpusScan, outputs: Sequence[Path], dropped: Counter[str], progress: ProgressCallback) -> int:
    reasons = _reasons(reading, DROPPED["labelled"])
    kept = row = 0
    for file, output in zip(reading.files, outputs, strict=True):
        found = find_columns(file, reading.columns)
        with ExitStack() as stack:
            write = _writer(stack, output, (*found.texts, found.label))
            for each in scan_labelled([file], columns=reading.columns, limit=reading.limit, progress=progress):
                if isinstance(each, BadLine):
                    continue
                if reason := reasons(row):
                    dropped[reason] += 1
                else:
                    kept += 1
                    write((*each.texts, LIST_SEPARATOR.join(each.labels)))
                row += 1
    return kept


def _write_questions(reading: CorpusScan, outputs: Sequence[Path], dropped: Counter[str], progress: ProgressCallback) -> int:
    reasons = _reasons(reading, DROPPED["questions"])
    kept = row = 0
    for file, output in zip(reading.files, outputs, strict=True):
        left = []
        for each in scan_questions([file], limit=reading.limit, progress=progress):
            if isinstance(each, BadLine):
                continue
            if reason := reasons(row):
                dropped[reason] += 1
            else:
                left.append(each)
            row += 1
        output.parent.mkdir(parents=True, exist_ok=True)
        with _create(output) as stream:
            stream.writelines(format_questions(left, output))
        kept += len(left)
    return kept


def _write_text(reading: CorpusScan, outputs: Sequence[Path], dropped: Counter[str], progress: ProgressCallback) -> int:
    targets = dict(zip(reading.files, outputs, strict=True))
    dropped.pop("blank", None)
    kept = row = 0
    for file, output in targets.items():
        is_table = file_format(file) in TABLES
        reasons = _reasons(reading, DROPPED["records" if is_table else "lines"])
        with ExitStack() as stack:
            write = _writer(stack, output, ("text",))
            for piece in scan_documents([file], limit=reading.limit, progress=progress):
                if isinstance(piece, BadLine):
                    dropped["blank"] += piece.kind == "blank"
                    continue
                is_blank = not piece.text.strip()
                if not is_blank and (reason := reasons(row)):
                    dropped[reason] += 1
                else:
                    kept += 1
                    write((piece.text if is_table else piece.text.removesuffix("\n"),))
                row += not is_blank
    return kept


def _reasons(reading: CorpusScan, kinds: Sequence[str]) -> Callable[[int], str]:
    """Why a row is left out, or nothing. A row with two troubles goes under the first."""
    troubles = reading.issue_masks()
    names = ["", *kinds]
    chosen = np.zeros(len(reading.statistics), np.uint8)
    for kind in reversed(kinds):
        if kind in troubles:
            chosen[troubles[kind]] = names.index(kind)
    places = chosen.tobytes()

    def reason(row: int) -> str:
        if row >= len(places):
            raise DataError(f"{', '.join(map(str, reading.files))} changed while being read")
        return names[places[row]]

    return reason


def _writer(stack: ExitStack, path: Path, columns: tuple[str, ...]) -> Callable[[Sequence[str]], object]:
    """How to write one row to a new file, in the format its name calls for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context(_create(path))
    kind = file_format(path)
    if kind == "jsonl":
        return lambda cells: file.write(json.dumps(dict(zip(columns, cells, strict=True)), ensure_ascii=False) + "\n")
    if kind == "csv":
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        return table.writerow
    if kind == "tsv":
        file.write("\t".join(columns) + "\n")
    return lambda cells: file.write("\t".join(cells) + "\n")


def _create(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "xt", encoding="utf-8", newline="\n")
    if path.suffix.lower() == ".xz":
        return lzma.open(path, "xt", encoding="utf-8", newline="\n")
    return path.open("x", encoding="utf-8", newline="\n")


def _names(files: Sequence[Path]) -> list[Path]:
    """The files' names in the copy: as they are, with as much of their folders as keeps them apart."""
    whole = [path.absolute() for path in files]
    common = os.path.commonpath([path.parent for path in whole])
    return [path.relative_to(common) for path in whole]


@contextmanager
def _cleaned_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears whole or not at all: written aside, then renamed."""
    try:
        with new_folder(folder) as temporary:
            yield temporary
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
