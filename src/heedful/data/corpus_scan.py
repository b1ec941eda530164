"""One pass over a corpus: its bad lines, statistics of the usable rows, and which of those have an issue."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from heedful.data.corpus_readers import scan_documents, scan_pairs
from heedful.data.corpus_statistics import ColumnStatistics, CorpusStatistics, Mask, chunks
from heedful.data.doctor_report import ColumnSummary, CorpusKind, CorpusReport, Finding, HistogramBin, Location
from heedful.data.labelled_reader import LabelledText, scan_labelled
from heedful.data.line_reader import BadLine, OnBadLine, handle_bad_line
from heedful.data.progress import ProgressCallback
from heedful.data.qa_reader import Question, scan_questions
from heedful.data.table_reader import LIST_SEPARATOR, file_format

MAX_LOCATIONS = 10
"""Locations listed for each finding."""

LONG_LINE = 40
"""Running text may repeat shorter lines ("Chapter I.", "All:"): only longer ones count as duplicates or leaks."""

BAD_LINES = {
    "misaligned": "lines without a counterpart",
    "utf-8": "lines that are not UTF-8",
    "nul": "lines with a NUL byte",
    "overlong": "overlong lines",
    "malformed": "malformed rows",
    "span": "questions whose answer is not in the passage where it should be",
    "blank": "blank lines",
}
ISSUES = {
    "pairs": {
        "duplicate": "duplicate pairs",
        "source": "duplicate sources with a different target",
        "leak": "pairs whose source is also held out",
        "copy": "untranslated targets, equal to their source",
        "ratio": "pairs with an unusual length ratio",
        "script": "pairs with a side in an unexpected script",
    },
    "text": {
        "duplicate": "duplicate long lines or records",
        "leak": "long lines or records that are also held out",
        "script": "lines in an unexpected script",
    },
    "labelled": {
        "duplicate": "duplicate texts with the same label",
        "source": "duplicate texts with a different label",
        "leak": "texts that are also held out",
        "script": "texts in an unexpected script",
    },
    "questions": {
        "duplicate": "duplicate questions about the same passage",
        "leak": "questions about a passage that is also held out",
        "script": "questions or passages in an unexpected script",
    },
}
COLUMNS = {"pairs": ("source", "target"), "questions": ("passage", "question")}
"""Names of the columns of text; other kinds have one, "text"."""

Row = TypeVar("Row", LabelledText, Question)
Cells = tuple[int, tuple[str, ...]]
"""A row's line number and its text in each column."""


@dataclass
class CorpusScan:
    """Reads files as pairs, running text, labelled texts or questions and gathers what the doctor reports.

    `held_out` are hashes of texts that must not occur in the files. At most `max_measured` rows are measured, so that
    memory is bounded; the others are read and counted.
    """

    kind: CorpusKind
    files: Sequence[Path]
    on_bad_line: OnBadLine = "skip"
    held_out: NDArray[np.int64] | None = None
    max_measured: int | None = None
    columns: Sequence[str] = ()
    """Names of the columns of labelled texts, if not the usual ones."""
    statistics: CorpusStatistics = field(init=False)
    usable: int = field(init=False, default=0)
    documents: int = field(init=False, default=0)
    characters: int = field(init=False, default=0)
    labels: Counter[str] = field(init=False, default_factory=Counter)
    misaligned: str = field(init=False, default="")
    """How the line counts of two files differ, if they do."""
    _bad_lines: Counter[str] = field(init=False, default_factory=Counter)
    _locations: dict[str, list[Location]] = field(init=False, default_factory=dict)
    _file_starts: list[tuple[int, Path]] = field(init=False, default_factory=list)
    """The first row of each file, where there may be several."""

    def __post_init__(self) -> None:
        has_lines = self.kind == "text" and any(file_format(path) == "lines" for path in self.files)
        self.statistics = CorpusStatistics(1 if self.kind == "text" else 2, shortest=LONG_LINE if has_lines else 1)

    def read(self, progress: ProgressCallback | None = None) -> None:
        """Read the files once."""
        readers = {"pairs": self._pairs, "text": self._text, "labelled": self._labelled, "questions": self._questions}
        for lines, texts in chunks(readers[self.kind](progress)):
            self.usable += len(lines)
            if self.max_measured is None or len(self.statistics) < self.max_measured:
                self.statistics.add(lines, texts)

    def _pairs(self, progress: ProgressCallback | None) -> Iterator[Cells]:
        for row in scan_pairs(self.files, progress=progress):
            if isinstance(row, BadLine):
                self._record(row)
            else:
                self.characters += len(row.source) + len(row.target)
                yield row.line, (row.source, row.target)

    def _labelled(self, progress: ProgressCallback | None) -> Iterator[Cells]:
        """Texts as first column, labels as second: a duplicate text with another label is then a "source" issue."""
        for row in self._usable(scan_labelled(self.files, columns=self.columns, progress=progress)):
            self.characters += sum(map(len, row.texts))
            self.labels.update(row.labels)
            yield row.line, ("\t".join(row.texts), LIST_SEPARATOR.join(row.labels))

    def _questions(self, progress: ProgressCallback | None) -> Iterator[Cells]:
        """Passages and questions. The characters of consecutive equal passages are counted once."""
        passage = ""
        for row in self._usable(scan_questions(self.files, progress=progress)):
            self.characters += len(row.question) + (len(row.passage) if row.passage != passage else 0)
            passage = row.passage
            self.labels["with an answer" if row.answers else "without an answer"] += 1
            yield row.line, (passage, row.question)

    def _usable(self, rows: Iterator[Row | BadLine]) -> Iterator[Row]:
        """Yield usable rows; record bad lines and the first row of each file."""
        count, file = 0, None
        for row in rows:
            if isinstance(row, BadLine):
                self._record(row)
                continue
            if row.path is not file:
                file = row.path
                self._file_starts.append((count, file))
            count += 1
            yield row

    def _text(self, progress: ProgressCallback | None) -> Iterator[Cells]:
        count, file = 0, None
        for row in scan_documents(self.files, progress=progress):
            if isinstance(row, BadLine):
                self._record(row)
                continue
            self.documents += row.ends_document
            self.characters += len(row.text)
            if not (text := row.text.strip()):
                self._record(BadLine("blank", row.path, row.line, "the line is blank"))
                continue
            if row.path is not file:
                file = row.path
                self._file_starts.append((count, file))
            count += 1
            yield row.line, (text,)

    def _record(self, bad: BadLine) -> None:
        if bad.kind == "misaligned":
            self.misaligned = bad.message
        else:
            handle_bad_line(bad, self.on_bad_line)
        self._bad_lines[bad.kind] += 1
        locations = self._locations.setdefault(bad.kind, [])
        if len(locations) < MAX_LOCATIONS:
            locations.append(Location(file=str(bad.path), line=bad.line))

    @property
    def bad_lines(self) -> Counter[str]:
        """Number of lines that could not be used, by kind."""
        return Counter({kind: count for kind, count in self._bad_lines.items() if kind != "misaligned"})

    def issue_masks(self) -> dict[str, Mask]:
        """Which of the usable rows have each kind of issue."""
        statistics = self.statistics
        masks = {"duplicate": statistics.duplicates()}
        if self.held_out is not None:
            masks["leak"] = np.isin(statistics.keys, self.held_out)
        if self.kind in ("pairs", "labelled"):
            masks["source"] = statistics.duplicate_sources() & ~masks["duplicate"]
        if self.kind == "pairs":
            masks |= {"copy": statistics.copies(), "ratio": statistics.length_ratio_outliers()}
        masks["script"] = np.logical_or.reduce([column.other_script() for column in self._text_columns])
        return masks

    @property
    def _text_columns(self) -> list[ColumnStatistics]:
        return self.statistics.columns[: 1 if self.kind == "labelled" else None]

    def report(self) -> CorpusReport:
        """Everything gathered, as the doctor's report."""
        names = COLUMNS.get(self.kind, ("text",))
        issues = [self._issue_finding(kind, mask) for kind, mask in self.issue_masks().items()]
        return CorpusReport(
            kind=self.kind,
            files=tuple(str(path) for path in self.files),
            rows=self.usable + self.bad_lines.total(),
            usable=self.usable,
            measured=len(self.statistics),
            documents=self.documents if self.kind == "text" else None,
            characters=self.characters,
            columns=tuple(_summary(name, column) for name, column in zip(names, self._text_columns, strict=True)),
            findings=(*self._bad_line_findings(), *issues),
            labels=dict(self.labels.most_common()),
        )

    def _bad_line_findings(self) -> Iterator[Finding]:
        for kind, description in BAD_LINES.items():
            if (kind == "misaligned" and self.kind != "pairs") or (kind == "span" and self.kind != "questions"):
                continue
            if kind == "misaligned":
                description = self.misaligned or description
            locations = tuple(self._locations.get(kind, ()))
            yield Finding(kind=kind, description=description, count=self._bad_lines[kind], locations=locations)

    def _issue_finding(self, kind: str, mask: Mask) -> Finding:
        description = ISSUES[self.kind][kind]
        if kind == "leak" and self.held_out is not None:
            leaked = int(np.isin(self.held_out, self.statistics.keys).sum())
            description += f", {leaked:,} of {len(self.held_out):,} held-out texts"
        locations = tuple(self._location(int(row)) for row in np.flatnonzero(mask)[:MAX_LOCATIONS])
        return Finding(kind=kind, description=description, count=int(mask.sum()), locations=locations)

    def _location(self, row: int) -> Location:
        file = self.files[0]
        if self._file_starts:
            file = self._file_starts[bisect_right(self._file_starts, row, key=lambda start: start[0]) - 1][1]
        return Location(file=str(file), line=self.statistics.line(row))


def _summary(name: str, column: ColumnStatistics) -> ColumnSummary:
    return ColumnSummary(
        name=name,
        characters=column.characters,
        words=column.words,
        script=column.script,
        median=column.quantile(0.5),
        p99=column.quantile(0.99),
        longest=column.longest,
        histogram=tuple(_histogram(column)),
    )


def _histogram(column: ColumnStatistics) -> Iterator[HistogramBin]:
    """Rows between powers of two, up to the longest; the last bin takes all that is longer."""
    low, highest = 1, len(column.lengths) - 1
    while low <= min(column.longest, highest):
        high = 2 * low - 1
        count = int(column.lengths[low : high + 1].sum())
        yield HistogramBin(low=low, high=max(high, column.longest if low == highest else 0), count=count)
        low *= 2
