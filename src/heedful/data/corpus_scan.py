"""A corpus read through once: the faults met on the way, a survey of the rest, and which rows are in trouble."""

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
from heedful.data.corpus_statistics import ColumnStatistics, Mask, CorpusStatistics, chunks
from heedful.data.doctor_report import HistogramBin, CorpusKind, Finding, Location, CorpusReport, ColumnSummary
from heedful.data.labelled_reader import LabelledText, scan_labelled
from heedful.data.line_reader import MAX_LINE, BadLine, OnBadLine, handle_bad_line
from heedful.data.progress import ProgressCallback
from heedful.data.qa_reader import Question, scan_questions
from heedful.data.table_reader import LIST_SEPARATOR, file_format

SHOWN = 10
"""Places given for each finding: enough to go and look."""

LONG_LINE = 40
"""Shorter lines of running text ("Chapter I.", "All:") come back by right; longer ones are suspect."""

FAULTS = {
    "misaligned": "lines without a partner",
    "utf-8": "lines that are not UTF-8",
    "nul": "lines with a NUL byte",
    "overlong": "lines that are too long",
    "malformed": "rows that cannot be parsed",
    "span": "questions whose answer is not in its passage, where it should be",
    "blank": "blank lines",
}
TROUBLES = {
    "pairs": {
        "duplicate": "pairs that were there before",
        "source": "sources that were there before, with another target",
        "leak": "pairs whose source is also held out",
        "copy": "targets that repeat their source untranslated",
        "ratio": "pairs with one side far too long for the other",
        "script": "pairs with a side in another script than the rest",
    },
    "text": {
        "duplicate": "long lines or records that were there before",
        "leak": "long lines or records that are also held out",
        "script": "lines in another script than the rest",
    },
    "labelled": {
        "duplicate": "texts that were there before, with the same label",
        "source": "texts that were there before, with another label",
        "leak": "texts that are also held out",
        "script": "texts in another script than the rest",
    },
    "questions": {
        "duplicate": "questions that were there before, about the same passage",
        "leak": "questions about a passage that is also held out",
        "script": "questions or passages in another script than the rest",
    },
}
SIDES = {"pairs": ("source", "target"), "questions": ("passage", "question")}
"""What the columns of a survey are; of other kinds, one is text."""


Row = TypeVar("Row", LabelledText, Question)


@dataclass
class CorpusScan:
    """Files as pairs, running text, labelled texts or questions. `held_out` are the hashes that must not occur in them.

    At most `most` rows are measured, so that memory is bounded; the rest is read and counted.
    """

    kind: CorpusKind
    files: Sequence[Path]
    on_bad_line: OnBadLine = "skip"
    limit: int = MAX_LINE
    held_out: NDArray[np.int64] | None = None
    max_measured: int | None = None
    columns: Sequence[str] = ()
    """Of labelled texts, where they have unusual names."""
    statistics: CorpusStatistics = field(init=False)
    usable: int = field(init=False, default=0)
    documents: int = field(init=False, default=0)
    characters: int = field(init=False, default=0)
    labels: Counter[str] = field(init=False, default_factory=Counter)
    _faults: Counter[str] = field(init=False, default_factory=Counter)
    _places: dict[str, list[Location]] = field(init=False, default_factory=dict)
    _misaligned: str = field(init=False, default="")
    _starts: list[tuple[int, Path]] = field(init=False, default_factory=list)
    """The first row of each file, where there may be several."""

    def __post_init__(self) -> None:
        has_lines = self.kind == "text" and any(file_format(path) == "lines" for path in self.files)
        self.statistics = CorpusStatistics(1 if self.kind == "text" else 2, shortest=LONG_LINE if has_lines else 1)

    def read(self, progress: ProgressCallback | None = None) -> None:
        """Go through the files, once."""
        ways = {"pairs": self._pairs, "text": self._text, "labelled": self._labelled, "questions": self._questions}
        rows = ways[self.kind](progress)
        for lines, texts in chunks(rows):
            self.usable += len(lines)
            if self.max_measured is None or len(self.statistics) < self.max_measured:
                self.statistics.add(lines, texts)

    def _pairs(self, progress: ProgressCallback | None) -> Iterator[tuple[int, tuple[str, ...]]]:
        for row in scan_pairs(self.files, limit=self.limit, progress=progress):
            if isinstance(row, BadLine):
                self._note(row)
            else:
                self.characters += len(row.source) + len(row.target)
                yield row.line, (row.source, row.target)

    def _labelled(self, progress: ProgressCallback | None) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Texts beside their labels: so texts that come back with another label are seen as sources would be."""
        for row in self._rows(scan_labelled(self.files, columns=self.columns, limit=self.limit, progress=progress)):
            self.characters += sum(map(len, row.texts))
            self.labels.update(row.labels)
            yield row.line, ("\t".join(row.texts), LIST_SEPARATOR.join(row.labels))

    def _questions(self, progress: ProgressCallback | None) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Passages beside what is asked about them. Of a passage that stays the same, characters count once."""
        passage = ""
        for row in self._rows(scan_questions(self.files, limit=self.limit, progress=progress)):
            self.characters += len(row.question) + (len(row.passage) if row.passage != passage else 0)
            passage = row.passage
            self.labels["with an answer" if row.answers else "without an answer"] += 1
            yield row.line, (passage, row.question)

    def _rows(self, scanned: Iterator[Row | BadLine]) -> Iterator[Row]:
        """The usable rows; faults are noted, and where each file begins."""
        count, file = 0, None
        for row in scanned:
            if isinstance(row, BadLine):
                self._note(row)
                continue
            if row.path is not file:
                file = row.path
                self._starts.append((count, file))
            count += 1
            yield row

    def _text(self, progress: ProgressCallback | None) -> Iterator[tuple[int, tuple[str, ...]]]:
        count, file = 0, None
        for piece in scan_documents(self.files, limit=self.limit, progress=progress):
            if isinstance(piece, BadLine):
                self._note(piece)
                continue
            self.documents += piece.ends_document
            self.characters += len(piece.text)
            if not (text := piece.text.strip()):
                self._note(BadLine("blank", piece.path, piece.line, "the line is blank"))
                continue
            if piece.path is not file:
                file = piece.path
                self._starts.append((count, file))
            count += 1
            yield piece.line, (text,)

    def _note(self, fault: BadLine) -> None:
        if fault.kind == "misaligned":
            self._misaligned = fault.message
        else:
            handle_bad_line(fault, self.on_bad_line, None)
        self._faults[fault.kind] += 1
        places = self._places.setdefault(fault.kind, [])
        if len(places) < SHOWN:
            places.append(Location(file=str(fault.path), line=fault.line))

    @property
    def faults(self) -> Counter[str]:
        """Lines that could not be used, by kind."""
        return Counter({kind: count for kind, count in self._faults.items() if kind != "misaligned"})

    @property
    def misaligned(self) -> str:
        """How the line counts of two files differ, if they do."""
        return self._misaligned

    def issue_masks(self) -> dict[str, Mask]:
        """Which of the usable rows are in trouble, by kind."""
        survey = self.statistics
        found = {"duplicate": survey.repeated()}
        if self.held_out is not None:
            found["leak"] = np.isin(survey.keys, self.held_out)
        if self.kind in ("pairs", "labelled"):
            found["source"] = survey.repeated_first() & ~found["duplicate"]
        if self.kind == "pairs":
            found |= {"copy": survey.copies(), "ratio": survey.outliers()}
        found["script"] = np.logical_or.reduce([column.other_script() for column in self._texts])
        return found

    @property
    def _texts(self) -> list[ColumnStatistics]:
        """The columns of the survey that hold text."""
        return self.statistics.columns[: 1 if self.kind == "labelled" else None]

    def report(self) -> CorpusReport:
        """All of it in words and numbers."""
        names = SIDES.get(self.kind, ("text",))
        troubles = [self._trouble(kind, mask) for kind, mask in self.issue_masks().items()]
        return CorpusReport(
            kind=self.kind,
            files=tuple(str(path) for path in self.files),
            rows=self.usable + self.faults.total(),
            usable=self.usable,
            measured=len(self.statistics),
            documents=self.documents if self.kind == "text" else None,
            characters=self.characters,
            columns=tuple(_side(name, column) for name, column in zip(names, self._texts, strict=True)),
            findings=(*self._met(), *troubles),
            labels=dict(self.labels.most_common()),
        )

    def _met(self) -> Iterator[Finding]:
        for kind, what in FAULTS.items():
            if kind == "misaligned":
                if self.kind != "pairs":
                    continue
                what = self._misaligned or what
            if kind == "span" and self.kind != "questions":
                continue
            places = tuple(self._places.get(kind, ()))
            yield Finding(kind=kind, description=what, count=self._faults[kind], locations=places)

    def _trouble(self, kind: str, mask: Mask) -> Finding:
        what = TROUBLES[self.kind][kind]
        if kind == "leak" and self.held_out is not None:
            met = int(np.isin(self.held_out, self.statistics.keys).sum())
            what += f" ({met:,} of the {len(self.held_out):,} there)"
        places = tuple(self._place(int(row)) for row in np.flatnonzero(mask)[:SHOWN])
        return Finding(kind=kind, description=what, count=int(mask.sum()), locations=places)

    def _place(self, row: int) -> Location:
        file = self.files[0]
        if self._starts:
            file = self._starts[bisect_right(self._starts, row, key=lambda start: start[0]) - 1][1]
        return Location(file=str(file), line=self.statistics.line(row))


def _side(name: str, column: ColumnStatistics) -> ColumnSummary:
    return ColumnSummary(
        name=name,
        characters=column.characters,
        words=column.words,
        script=column.script,
        median=column.quantile(0.5),
        p99=column.quantile(0.99),
        longest=column.longest,
        histogram=tuple(_bars(column)),
    )


def _bars(column: ColumnStatistics) -> Iterator[HistogramBin]:
    """Rows between powers of two, up to the longest; the last bar takes all that is longer."""
    low, highest = 1, len(column.lengths) - 1
    while low <= min(column.longest, highest):
        high = 2 * low - 1
        yield HistogramBin(low=low, high=max(high, column.longest if low == highest else 0), count=_between(column, low, high))
        low *= 2


def _between(column: ColumnStatistics, low: int, high: int) -> int:
    return int(column.lengths[low : high + 1].sum())
