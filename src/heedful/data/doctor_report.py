"""The doctor's report as checked values: printed as tables by the command, or as JSON for programs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from heedful.config import Config

CorpusKind = Literal["pairs", "text", "labeled", "questions"]
"""Source and target, running text, texts with labels, or questions about passages."""


class Location(Config):
    """A line of a file, from 1."""

    file: str
    line: int


class Finding(Config):
    """One kind of issue: how many rows have it, and the first locations."""

    kind: str
    description: str
    count: int
    locations: tuple[Location, ...] = ()


class HistogramBin(Config):
    """Number of rows with `low` to `high` characters."""

    low: int
    high: int
    count: int


class ColumnSummary(Config):
    """Sizes of one column of the corpus: source, target or text. Lengths are in characters."""

    name: str
    characters: int
    words: int | None
    """Number of words; None where the script puts no spaces between them."""
    script: str
    median: int
    p99: int
    """99th percentile of the lengths."""
    longest: int
    histogram: tuple[HistogramBin, ...]


class CleanCopy(Config):
    """The counts of a clean copy: rows kept and dropped."""

    folder: str
    files: tuple[str, ...]
    kept: int
    dropped: dict[str, int]


class CorpusReport(Config):
    """The doctor's report. Every kind of finding checked for is listed, with a count of 0 where there is none."""

    kind: CorpusKind
    files: tuple[str, ...]
    rows: int
    """Pairs, lines and records of text, labeled texts, or questions, usable or not."""
    usable: int
    measured: int
    """Usable rows, from the first on, that were checked for duplicates, leaks, copies and scripts."""
    documents: int | None
    """Number of documents of running text."""
    characters: int
    """Number of characters of all usable text."""
    layout: tuple[str, ...] = ()
    """For each table of pairs or running text, the columns that were read."""
    columns: tuple[ColumnSummary, ...]
    findings: tuple[Finding, ...]
    labels: dict[str, int] = Field(default_factory=dict)
    """Number of texts with each label, the most frequent first."""
    cleaned: CleanCopy | None = None

    def count(self, kind: str) -> int:
        """Number of rows with a kind of finding."""
        return next((finding.count for finding in self.findings if finding.kind == kind), 0)

    def lines(self, kind: str) -> tuple[int, ...]:
        """First line numbers of a kind of finding."""
        findings = (finding for finding in self.findings if finding.kind == kind)
        return tuple(location.line for finding in findings for location in finding.locations)

    def to_json(self) -> str:
        return self.model_dump_json()
