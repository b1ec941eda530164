"""One pass over a corpus: its bad lines, statistics of the usable rows, and which of those have an issue."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.corpus_readers import (
    DocumentLine,
    Pair,
    Scan,
    describe_layout,
    in_blocks,
    is_text_table,
    scan_documents,
    scan_pairs,
)
from heedful.data.corpus_statistics import CHUNK_CHARACTERS, CHUNK_ROWS, ColumnStatistics, CorpusStatistics, Mask
from heedful.data.doctor_report import ColumnSummary, CorpusKind, CorpusReport, Finding, HistogramBin, Location
from heedful.data.labeled_reader import LabeledText, scan_labeled
from heedful.data.line_reader import BadLine, OnBadLine, handle_bad_line
from heedful.data.progress import ProgressCallback
from heedful.data.qa_reader import Question, scan_questions
from heedful.data.table_layout import TableLayout, is_table, read_layout
from heedful.data.table_reader import LIST_SEPARATOR, Cells
from heedful.data.unicode_scripts import UNSPACED_SCRIPTS

MAX_LOCATIONS = 10
"""Locations listed for each finding."""

MAX_SPELLINGS = 3
"""Labels named that differ only in case, and spellings of each."""

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
    "labeled": {
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
FORMS = {
    "escaped": "{} with escaped characters (&apos;): the model learns to write them so; unescape them (html.unescape)",
    "tokenized": '{} of tokenized text ("i \'m here ."): the model learns such spaces; use untokenized text',
}
"""Text artifacts that a model would learn to write, in any kind of corpus."""
ROWS = {"pairs": "pairs", "text": "lines", "labeled": "texts", "questions": "questions"}
COLUMNS = {"pairs": ("source", "target"), "questions": ("passage", "question")}
"""Names of the columns of text; other kinds have one, "text"."""

CorpusRow = Pair | DocumentLine | LabeledText | Question
"""A row of any kind of corpus."""


@dataclass
class CorpusScan:
    """Reads files as pairs, running text, labeled texts or questions and gathers what the doctor reports.

    `held_out` are hashes of texts that must not occur in the files. At most `max_measured` rows are measured, so that
    memory is bounded; the others are read and counted.
    """

    kind: CorpusKind
    files: Sequence[Path]
    on_bad_line: OnBadLine = "skip"
    held_out: NDArray[np.int64] | None = None
    max_measured: int | None = None
    columns: Sequence[str] = ()
    """Names or numbers of the columns that are read; empty: the usual ones."""

    def __post_init__(self) -> None:
        has_lines = self.kind == "text" and not all(is_text_table(path, self.columns) for path in self.files)
        self.statistics = CorpusStatistics(1 if self.kind == "text" else 2, shortest=LONG_LINE if has_lines else 1)
        self.usable = self.documents = self.characters = 0
        self.labels, self._bad_lines = Counter[str](), Counter[str]()
        self._first_labels: dict[Path, LabeledText] = {}  # the first labeled text of each file
        self._locations: dict[str, list[Location]] = {}
        self._file_starts: list[tuple[int, Path]] = []  # the first row of each file
        self.misaligned = ""  # how the line counts of two files differ, if they do
        self._passage = ""  # of the last question: the characters of consecutive equal passages are counted once

    def read(self, progress: ProgressCallback | None = None) -> None:
        """Read the files once."""
        rows = self._measure(self.scan(self.files, progress))
        for chunk in in_blocks(rows, lambda row: len(row[1][0]) + len(row[1][-1]), CHUNK_ROWS, CHUNK_CHARACTERS):
            self.usable += len(chunk)
            if self.max_measured is None or len(self.statistics) < self.max_measured:
                self.statistics.add(chunk)

    def scan(self, files: Sequence[Path], progress: ProgressCallback | None) -> Iterator[CorpusRow | BadLine]:
        """Yield the rows of these files, read as this kind of corpus."""
        scans: dict[str, Scan[CorpusRow]] = {
            "pairs": scan_pairs,
            "text": scan_documents,
            "labeled": scan_labeled,
            "questions": scan_questions,
        }
        return scans[self.kind](files, columns=self.columns, progress=progress)

    def _measure(self, rows: Iterator[Any]) -> Iterator[Cells]:
        """Yield the text of each usable row; record bad lines and the first row of each file."""
        measures: dict[str, Callable[[Any], tuple[str, ...]]]
        measures = {"pairs": self._pair, "text": self._line, "labeled": self._labeled, "questions": self._question}
        measure = measures[self.kind]
        count, file = 0, None
        for row in rows:
            if isinstance(row, BadLine):
                self._record(row)
            elif cells := measure(row):
                if row.path is not file:
                    file = row.path
                    self._file_starts.append((count, file))
                count += 1
                yield row.line, cells
            else:
                self._record(BadLine("blank", row.path, row.line, "the line is blank"))

    def _pair(self, row: Pair) -> tuple[str, ...]:
        self.characters += len(row.source) + len(row.target)
        return row.source, row.target

    def _line(self, row: DocumentLine) -> tuple[str, ...]:
        self.documents += row.ends_document
        self.characters += len(row.text)
        text = row.text.strip()
        return (text,) if text else ()

    def _labeled(self, row: LabeledText) -> tuple[str, ...]:
        """Texts as first column, labels as second: a duplicate text with another label is then a "source" issue."""
        self.characters += sum(map(len, row.texts))
        self.labels.update(row.labels)
        self._first_labels.setdefault(row.path, row)
        return "\t".join(row.texts), LIST_SEPARATOR.join(row.labels)

    def _question(self, row: Question) -> tuple[str, ...]:
        self.characters += len(row.question) + (len(row.passage) if row.passage != self._passage else 0)
        self._passage = row.passage
        self.labels["with an answer" if row.answers else "without an answer"] += 1
        return row.passage, row.question

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
        """For each kind of issue, a mask of the usable rows that have it."""
        statistics = self.statistics
        masks = {"duplicate": statistics.duplicates()}
        if self.held_out is not None:
            masks["leak"] = np.isin(statistics.keys, self.held_out)
        if self.kind in ("pairs", "labeled"):
            masks["source"] = statistics.duplicate_sources() & ~masks["duplicate"]
        if self.kind == "pairs":
            masks |= {"copy": statistics.copies(), "ratio": statistics.length_ratio_outliers()}
        masks |= {"escaped": statistics.escaped(), "tokenized": statistics.tokenized()}
        masks["script"] = np.logical_or.reduce([column.other_script() for column in self.text_columns])
        return masks

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of text."""
        return COLUMNS.get(self.kind, ("text",))

    @property
    def text_columns(self) -> list[ColumnStatistics]:
        return self.statistics.columns[: 1 if self.kind == "labeled" else None]

    def report(self) -> CorpusReport:
        """Everything gathered, as the doctor's report."""
        names = self.column_names
        issues = [self._issue_finding(kind, mask) for kind, mask in self.issue_masks().items()]
        return CorpusReport(
            kind=self.kind,
            files=tuple(str(path) for path in self.files),
            rows=self.usable + self.bad_lines.total(),
            usable=self.usable,
            measured=len(self.statistics),
            documents=self.documents if self.kind == "text" else None,
            characters=self.characters,
            layout=tuple(describe_layout(self.files, self.kind, self.columns)),
            columns=tuple(_summary(name, column) for name, column in zip(names, self.text_columns, strict=True)),
            findings=(
                *self._bad_line_findings(),
                *self._alignment_findings(),
                *issues,
                *self._header_findings(),
                *self._label_findings(),
            ),
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

    def _alignment_findings(self) -> Iterator[Finding]:
        """A finding if the pairs look unrelated, from the beginning or from somewhere on to the end."""
        if self.kind == "pairs" and (first := self.statistics.alignment.first_misaligned()) is not None:
            location = self._location(first)
            description = (
                f"pairs look misaligned from about line {location.line} on: the lengths of their sides are unrelated, "
                "and a model would learn wrong translations (look for a missing line there, or a side in another order)"
            )
            count = len(self.statistics) - first
            yield Finding(kind="unrelated", description=description, count=count, locations=(location,))

    def _header_findings(self) -> Iterator[Finding]:
        """A finding for each table whose first row may be a header, and is read as an example."""
        for file in self.files if self.kind in ("pairs", "labeled") else ():
            layout = read_layout(file, self.columns) if is_table(file) else None
            if layout and (names := layout.first or self._unlike_other_labels(layout)):
                columns = ",".join(names)
                description = f"first row read as an example, but perhaps a header (then request --columns {columns})"
                yield Finding(
                    kind="header", description=description, count=1, locations=(Location(file=str(file), line=1),)
                )

    def _unlike_other_labels(self, layout: TableLayout) -> tuple[str, ...]:
        """The cells of a first row that is no header, but whose label is the only one that no other text has."""
        first = self._first_labels.get(layout.path)
        if not first or not layout.separator or layout.has_header or first.line != layout.preamble + 1:
            return ()
        single = {label for label, count in self.labels.items() if count == 1}
        has_others = len(self.labels) > len(single)
        return tuple(layout.sample[0]) if has_others and single == {*first.labels} else ()

    def _label_findings(self) -> Iterator[Finding]:
        """Findings if all texts have one label, which a classifier cannot learn from, or labels differ only in case."""
        if self.kind == "labeled" and len(self.labels) < 2:
            description = f"texts of only one class, {next(iter(self.labels), '')!r}: a classifier needs two"
            yield Finding(kind="one_class", description=description, count=self.usable)
        spellings: dict[str, list[str]] = {}
        for label, _ in self.labels.most_common() if self.kind == "labeled" else ():
            spellings.setdefault(label.casefold(), []).append(label)
        if alike := [labels for labels in spellings.values() if len(labels) > 1]:
            listed = "; ".join(", ".join(map(repr, labels[:MAX_SPELLINGS])) for labels in alike[:MAX_SPELLINGS])
            description = (
                f"texts whose label differs from another only in case ({listed}), a class of its own: write them alike"
            )
            count = sum(self.labels[label] for labels in alike for label in labels[1:])
            yield Finding(kind="label_case", description=description, count=count)

    def _issue_finding(self, kind: str, mask: Mask) -> Finding:
        description = FORMS[kind].format(ROWS[self.kind]) if kind in FORMS else ISSUES[self.kind][kind]
        if kind == "leak" and self.held_out is not None:
            leaked = int(np.isin(self.held_out, self.statistics.keys).sum())
            description += f", {leaked:,} of {len(self.held_out):,} held-out texts"
        locations = tuple(self._location(int(row)) for row in np.flatnonzero(mask)[:MAX_LOCATIONS])
        return Finding(kind=kind, description=description, count=int(mask.sum()), locations=locations)

    def _location(self, row: int) -> Location:
        _, file = self._file_starts[bisect_right(self._file_starts, row, key=lambda start: start[0]) - 1]
        return Location(file=str(file), line=self.statistics.line(row))


def _summary(name: str, column: ColumnStatistics) -> ColumnSummary:
    return ColumnSummary(
        name=name,
        characters=column.characters,
        words=None if column.script in UNSPACED_SCRIPTS else column.words,
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
