"""The doctor's check before training: which examples are dropped and why, and which look wrong but are kept."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from heedful.data.corpus_doctor import detect_corpus_kind, examine
from heedful.data.corpus_scan import BAD_LINES
from heedful.data.doctor_report import CorpusKind, CorpusReport, Finding
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import DataError
from heedful.quantities import describe_count

MAX_MEASURED = 5_000_000
"""Rows checked for duplicates and the like: some 60 bytes each while they are compared."""

REPORTED = {"duplicate", "leak", "copy", "ratio", "script", "escaped", "tokenized", "header", "held_out", "unrelated"}
REPORTED_OF_KIND = {"labeled": {"source", "label_case"}}
"""Reported for some kinds only: a sentence may well have two translations, but a text has one label."""


class DataIssue(NamedTuple):
    """Rows with one issue: whether they were dropped or kept, their number, and the location of the first."""

    action: Literal["dropped", "truncated", "kept", "not examined"]
    description: str
    rows: int
    first: str = ""

    @property
    def count_and_location(self) -> str:
        return f"{self.rows:,}" + (f", first at {self.first}" if self.first else "")

    def __str__(self) -> str:
        location = f", first at {self.first}" if self.first else ""
        return f"{describe_count(self.rows, self.description)} ({self.action}){location}"


def check_corpus(
    files: Sequence[Path],
    kind: CorpusKind,
    *,
    held_out: Sequence[Path] = (),
    on_bad_line: OnBadLine = "fail",
    columns: Sequence[str] = (),
    start_progress: StartProgress = no_progress,
) -> CorpusReport:
    """Read and examine the training files once; raise DataError for what training could not use either."""
    if kind == "pairs" and len(files) == 2 and files[0].resolve() == files[1].resolve():
        raise DataError(f"{files[0]} is given as source and as target: name two files")
    report = examine(
        files,
        against=held_out or None,
        kind=kind,
        on_bad_line=on_bad_line,
        max_measured=MAX_MEASURED,
        columns=columns,
        start_progress=start_progress,
    )
    for finding in report.findings:
        if finding.kind == "misaligned" and finding.count:
            raise DataError(finding.description)
    return report


def data_issues(
    report: CorpusReport,
    dropped: Mapping[str, int],
    first_lines: Mapping[str, int],
    truncated: Mapping[str, int] | None = None,
) -> tuple[DataIssue, ...]:
    """List what was dropped, truncated or looks wrong.

    `dropped` is counted by kind of bad line or by a description, `truncated` by a description; `first_lines` has the
    first line of each description.
    """
    findings = {finding.kind: finding for finding in report.findings if finding.count}

    def issues() -> Iterator[DataIssue]:
        for reason, count in dropped.items():
            if reason in BAD_LINES:
                yield DataIssue("dropped", BAD_LINES[reason], count, _first_location(findings[reason]))
            else:
                yield DataIssue("dropped", reason, count, f"{name}:{first_lines[reason]}")
        for reason, count in (truncated or {}).items():
            yield DataIssue("truncated", reason, count, f"{name}:{first_lines[reason]}")
        for finding in findings.values():
            if finding.kind in REPORTED | REPORTED_OF_KIND.get(report.kind, set()):
                yield DataIssue("kept", finding.description, finding.count, _first_location(finding))
        if beyond := report.usable - report.measured:
            yield DataIssue("not examined", f"rows after the first {report.measured:,}", beyond)

    name = Path(report.files[0]).name
    return tuple(issues())


def _first_location(finding: Finding) -> str:
    if not finding.locations:
        return ""
    return f"{Path(finding.locations[0].file).name}:{finding.locations[0].line}"


def doctor_command(
    report: CorpusReport, files: Sequence[Path], held_out: Sequence[Path], columns: Sequence[str] = ()
) -> str:
    """The `heedful doctor` command that shows everything about these files."""
    as_kind = [] if detect_corpus_kind(files, columns) == report.kind else ["--as", report.kind]
    against = [word for file in held_out for word in ("--against", _relative(file))]
    named = ["--columns", ",".join(columns)] if columns else []
    return shlex.join(["heedful", "doctor", *map(_relative, files), *as_kind, *named, *against])


def _relative(file: Path) -> str:
    folder = Path.cwd()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)
