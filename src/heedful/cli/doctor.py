"""`heedful doctor`: examine a corpus, and write a clean copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heedful.errors import DataError, UsageError
from heedful.quantities import count

if TYPE_CHECKING:
    from heedful.data.doctor_report import CorpusReport, Finding

BAR_WIDTH = 24
MAX_LABELS = 20
"""Maximum number of labels shown."""


def doctor(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Two line-aligned text files or a table of pairs; running text; tables of texts with labels; SQuAD.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON: one object on a line.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write a clean copy into a new folder.")
    ] = None,
    on_bad_line: Annotated[
        Literal["skip", "fail"],
        typer.Option(help="At a line that cannot be read: skip it, or stop (exit 3)."),
    ] = "skip",
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Held-out file that must not occur in FILES; repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", show_default="usual names", help="Columns by name or number: en,de or 1,2 or review,stars."
        ),
    ] = None,
    kind: Annotated[
        Literal["auto", "pairs", "text", "labeled", "questions"],
        typer.Option("--as", help="Read as pairs, text, labeled texts or questions; auto: by the file names."),
    ] = "auto",
) -> None:
    """Check FILES for blank, malformed, misaligned, duplicate and leaked lines, and measure them.

    Examples:
      heedful doctor train.en train.de --against test.en --against test.de
      heedful doctor reviews.csv --columns review,stars --write clean
    """
    from heedful.data.corpus_doctor import examine
    from heedful.data.corpus_files import as_columns
    from heedful.training.reporting.events import Events, terminal_listener

    check_held_out_pair(files, against or [])
    report = examine(
        files,
        clean_copy=write,
        against=against,
        kind=kind,
        on_bad_line=on_bad_line,
        columns=as_columns(columns),
        start_progress=Events(terminal_listener()).stage,
    )
    if as_json:
        typer.echo(report.to_json())
    else:
        print_report(report)
    misaligned = next((finding for finding in report.findings if finding.kind == "misaligned" and finding.count), None)
    if misaligned is not None:
        raise DataError(misaligned.description)


def check_held_out_pair(files: Sequence[Path], against: Sequence[Path]) -> None:
    """Refuse `--against dev.en dev.de`, where dev.de would be checked as a third file of the corpus."""
    if len(against) == 1 and len(files) == 3 and files[2].name != against[0].name and files[2].stem == against[0].stem:
        hint = f"--against {against[0]} --against {files[2]}"
        raise UsageError(f"--against takes one file at a time; repeat it for the second one: {hint}")


def print_report(report: CorpusReport) -> None:
    """Print the report as tables."""
    from heedful.cli.table_console import TableConsole

    console = TableConsole(highlight=False)
    lines = f"lines in {count(report.documents or 0, 'document')}"
    rows = {"pairs": "pairs", "labeled": "labeled texts", "questions": "questions", "text": lines}[report.kind]
    more = f" and {len(report.files) - 3:,} more" if len(report.files) > 4 else ""
    names = ", ".join(report.files[:3] if more else report.files)
    typer.echo(f"{names}{more}: {report.rows:,} {rows}, {report.usable:,} usable")
    for layout in report.layout:
        typer.echo(f"columns read: {layout}")
    console.print(_column_table(report), _length_histogram(report))
    if report.labels:
        console.print(_label_table(report))
    findings = [finding for finding in report.findings if finding.count]
    if findings:
        console.print(_finding_table(report, findings))
    else:
        typer.echo("No issues found.")
    if copy := report.cleaned:
        dropped = ", ".join(f"{count:,} {kind}" for kind, count in copy.dropped.items()) or "nothing"
        typer.echo(f"Clean copy in {copy.folder}: {copy.kept:,} kept; dropped: {dropped}")


def _column_table(report: CorpusReport) -> Any:
    table = _table("", "characters", "words", "script", "median length", "99% within", "longest")
    for column in report.columns:
        lengths = [f"{length:,}" for length in (column.median, column.p99, column.longest)]
        words = "" if column.words is None else f"{column.words:,}"
        table.add_row(column.name, f"{column.characters:,}", words, column.script, *lengths)
    return table


def _length_histogram(report: CorpusReport) -> Any:
    """Histograms of the columns' lengths side by side, from the shortest to the longest."""
    counts = [{bucket.low: bucket.count for bucket in column.histogram} for column in report.columns]
    highs = {bucket.low: bucket.high for column in report.columns for bucket in column.histogram}
    largest = max(max(column.values(), default=1) for column in counts)
    table = _table("characters", *(column.name for column in report.columns), right=("characters",))
    used = [low for low in highs if any(column.get(low) for column in counts)]
    for low in sorted(low for low in highs if min(used) <= low <= max(used)):
        interval = f"{low:,}" if low == highs[low] else f"{low:,}–{highs[low]:,}"
        table.add_row(interval, *(_bar(column.get(low, 0), largest) for column in counts))
    return table


def _bar(count: int, largest: int) -> str:
    return f"{'█' * round(BAR_WIDTH * count / largest) or '▏'} {count:,}" if count else ""


def _label_table(report: CorpusReport) -> Any:
    """The number of texts with each label; of many labels, the most and the least frequent."""
    table = _table("label", "count", "share", "", right=("count", "share"))
    labels = list(report.labels.items())
    shown = labels if len(labels) <= MAX_LABELS else [*labels[: MAX_LABELS - 3], ("…", 0), *labels[-2:]]
    for name, texts in shown:
        row = (f"{texts:,}", f"{texts / max(1, report.usable):.1%}", _bar(texts, labels[0][1]).split(" ")[0])
        table.add_row(name, *(row if texts else ("", "", "")))
    return table


def _finding_table(report: CorpusReport, findings: Sequence[Finding]) -> Any:
    from rich.markup import escape

    table = _table("finding", "count", "share", "first lines", right=("count", "share"))
    for finding in findings:
        share = f"{finding.count / max(1, report.rows):.2%}"
        table.add_row(escape(finding.description), f"{finding.count:,}", share, escape(_first_lines(report, finding)))
    return table


def _first_lines(report: CorpusReport, finding: Finding) -> str:
    """The first few line numbers, with the names of their files if there are several."""
    lines: dict[str, list[str]] = {}
    for location in finding.locations[:5]:
        lines.setdefault(Path(location.file).name, []).append(str(location.line))
    dots = " …" if finding.count > 5 and lines else ""
    if report.kind == "pairs" or len(report.files) == 1:
        return ", ".join(number for numbers in lines.values() for number in numbers) + dots
    return "; ".join(f"{name}: {', '.join(numbers)}" for name, numbers in lines.items()) + dots


def _table(*columns: str, right: Sequence[str] | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        align_right = column in right if right is not None else number > 0 and column != "script"
        table.add_column(column, justify="right" if align_right else "left")
    return table
