"""What the doctor says, as checked values: printed as tables by the command, and as JSON for programs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from heedful.config import Config

CorpusKind = Literal["pairs", "text", "labelled", "questions"]
"""Source and target, running text, texts with labels, or questions about passages."""


class Location(Config):
    """Where to look."""

    file: str
    line: int


class Finding(Config):
    """One kind of trouble: how often, and where first."""

    kind: str
    description: str
    count: int
    locations: tuple[Location, ...] = ()


class HistogramBin(Config):
    """Rows of `low` to `high` characters."""

    low: int
    high: int
    count: int


class ColumnSummary(Config):
    """One column of the corpus: source, target, or text. Lengths are in characters."""

    name: str
    characters: int
    words: int
    script: str
    median: int
    p99: int
    """Ninety-nine rows in a hundred are no longer than this."""
    longest: int
    histogram: tuple[HistogramBin, ...]


class CleanCopy(Config):
    """What a clean copy kept and left out."""

    folder: str
    files: tuple[str, ...]
    kept: int
    dropped: dict[str, int]


class CorpusReport(Config):
    """What the doctor found. Every kind of finding looked for is listed, those not met with a count of 0."""

    kind: CorpusKind
    files: tuple[str, ...]
    rows: int
    """Pairs, lines and records of text, labelled texts, or questions, usable or not."""
    usable: int
    measured: int
    """Of the usable ones the first so many; only in these are repeats, leaks, copies and strangers looked for."""
    documents: int | None
    """Of running text."""
    characters: int
    """Of all usable text, as it is read."""
    columns: tuple[ColumnSummary, ...]
    findings: tuple[Finding, ...]
    labels: dict[str, int] = Field(default_factory=dict)
    """How often each was given, the most frequent first."""
    cleaned: CleanCopy | None = None

    def count(self, kind: str) -> int:
        """How often a kind of finding was met."""
        return next((finding.count for finding in self.findings if finding.kind == kind), 0)

    def lines(self, kind: str) -> tuple[int, ...]:
        """The first line numbers of a kind of finding."""
        return next((tuple(place.line for place in found.locations) for found in self.findings if found.kind == kind), ())

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)
