"""The doctor in short, for training: what was dropped and why, and what looks wrong but was kept."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from heedful.data.corpus_doctor import examine, detect_corpus_kind
from heedful.data.corpus_scan import FAULTS
from heedful.data.doctor_report import CorpusKind, Finding, CorpusReport
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import DataError

MEASURED = 5_000_000
"""Rows looked at for repeats and the like: some 60 bytes each while they are compared."""

SUSPECT = {"duplicate", "leak", "copy", "ratio", "script"}
ALSO = {"labelled": {"source"}}
"""What is suspect in some kinds only: a sentence may be translated in two ways."""


class DataIssue(NamedTuple):
    """Rows worth a word: how many, what of them, and where the first is; all but the dropped are trained on."""

    action: Literal["dropped", "cut off", "kept", "not examined"]
    description: str
    count: int
    first: str = ""

    @property
    def count_and_location(self) -> str:
        return f"{self.count:,}" + (f", first at {self.first}" if self.first else "")

    def __str__(self) -> str:
        verb = "kept, but worth a look:" if self.action == "kept" else self.action
        return f"{verb} {self.count:,} {self.description}" + (f", first at {self.first}" if self.first else "")


def check_corpus(
    files: Sequence[Path],
    kind: CorpusKind,
    *,
    held_out: Sequence[Path] = (),
    on_bad_line: OnBadLine = "fail",
    columns: Sequence[str] = (),
    start_progress: StartProgress = no_progress,
) -> CorpusReport:
    """Read the text once, count it and examine it, stopping at what training could not use either."""
    if kind == "pairs" and len(files) == 2 and files[0].resolve() == files[1].resolve():
        raise DataError(f"{files[0]} is given as source and as target: name two files")
    report = examine(
        files,
        against=held_out or None,
        kind=kind,
        on_bad_line=on_bad_line,
        max_measured=MEASURED,
        columns=columns,
        start_progress=start_progress,
    )
    for finding in report.findings:
        if finding.kind == "misaligned" and finding.count:
            raise DataError(finding.description)
    return report


def data_issues(
    report: CorpusReport, dropped: Mapping[str, int], first_lines: Mapping[str, int], cut: Mapping[str, int] | None = None
) -> tuple[DataIssue, ...]:
    """What to say of the text. `dropped` counts by kind of fault or in words, those with their `first_lines`; `cut`
    counts what was shortened, by why."""
    found = {finding.kind: finding for finding in report.findings if finding.count}
    name = Path(report.files[0]).name
    shortened = (DataIssue("cut off", why, rows, f"{name}:{first_lines[why]}") for why, rows in (cut or {}).items())
    return (*_dropped(report, found, dropped, first_lines), *shortened, *_kept(report, found))


def _dropped(
    report: CorpusReport, found: Mapping[str, Finding], dropped: Mapping[str, int], first_lines: Mapping[str, int]
) -> Iterator[DataIssue]:
    for reason, count in dropped.items():
        if reason in FAULTS:
            yield DataIssue("dropped", FAULTS[reason], count, _place(found[reason]))
        else:
            yield DataIssue("dropped", reason, count, f"{Path(report.files[0]).name}:{first_lines[reason]}")


def _kept(report: CorpusReport, found: Mapping[str, Finding]) -> Iterator[DataIssue]:
    for finding in found.values():
        if finding.kind in SUSPECT | ALSO.get(report.kind, set()):
            yield DataIssue("kept", finding.description, finding.count, _place(finding))
    if beyond := report.usable - report.measured:
        yield DataIssue("not examined", f"rows beyond the first {report.measured:,}", beyond)


def _place(finding: Finding) -> str:
    return f"{Path(finding.locations[0].file).name}:{finding.locations[0].line}"


def doctor_command(
    report: CorpusReport, files: Sequence[Path], held_out: Sequence[Path], columns: Sequence[str] = ()
) -> str:
    """The command that shows everything about these files."""
    as_kind = [] if detect_corpus_kind(files) == report.kind else ["--as", report.kind]
    against = [word for file in held_out for word in ("--against", _near(file))]
    named = ["--columns", ",".join(columns)] if columns else []
    return shlex.join(["heedful", "doctor", *map(_near, files), *as_kind, *named, *against])


def _near(file: Path) -> str:
    """As a person would name it from here."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
