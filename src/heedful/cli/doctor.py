"""`heedful doctor`: what a corpus holds and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from heedful.data.doctor_report import CorpusReport, Finding

BAR = 24
LABELS = 20
"""Shown, at most."""


def doctor(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Two line-aligned text files or a table of pairs; running text; tables of texts with labels; SQuAD."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write a clean copy into a new folder.")
    ] = None,
    on_bad_line: Annotated[
        Literal["skip", "fail"], typer.Option(help="Go on after a line that cannot be read, or stop there (exit 3).")
    ] = "skip",
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A held-out file to look for in these; repeat it for each file."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of texts and labels, as review,stars; default: the usual names.")
    ] = None,
    kind: Annotated[
        Literal["auto", "pairs", "text", "labelled", "questions"],
        typer.Option("--as", help="Read as pairs, text, labelled texts or questions, whatever the names say."),
    ] = "auto",
) -> None:
    """Count, measure and check FILES: blank, broken, misaligned, repeated, leaked."""
    from heedful.data.corpus_doctor import clean, examine
    from heedful.training.reporting.events import Events, terminal_listener

    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    how: dict[str, Any] = {"against": against, "kind": kind, "on_bad_line": on_bad_line, "columns": names}
    how["start_progress"] = Events(terminal_listener()).stage
    report = examine(files, **how) if write is None else clean(files, write, **how)
    if as_json:
        typer.echo(report.to_json())
    else:
        show(report)


def show(report: CorpusReport, console: Any = None) -> None:
    """The report as tables, for people."""
    from rich.console import Console

    console = console or Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    lines = f"lines in {report.documents or 0:,} document(s)"
    what = {"pairs": "pairs", "labelled": "labelled texts", "questions": "questions", "text": lines}[report.kind]
    more = f" and {len(report.files) - 3:,} more" if len(report.files) > 4 else ""
    names = ", ".join(report.files[:3] if more else report.files)
    say(f"{names}{more}: {report.rows:,} {what}, {report.usable:,} usable")
    console.print(_sides(report), _histogram(report))
    if report.labels:
        console.print(_labels(report))
    found = [finding for finding in report.findings if finding.count]
    if found:
        console.print(_findings(report, found))
    else:
        say("Nothing wrong was found.")
    if report.cleaned:
        left_out = ", ".join(f"{count:,} {kind}" for kind, count in report.cleaned.dropped.items()) or "nothing"
        say(f"Clean copy in {report.cleaned.folder}: {report.cleaned.kept:,} kept; left out: {left_out}")


def _sides(report: CorpusReport) -> Any:
    table = _table("", "characters", "words", "script", "median length", "99% within", "longest")
    for side in report.columns:
        numbers = [f"{number:,}" for number in (side.median, side.p99, side.longest)]
        table.add_row(side.name, f"{side.characters:,}", f"{side.words:,}", side.script, *numbers)
    return table


def _histogram(report: CorpusReport) -> Any:
    """Lengths as bars, side by side, from the first length that occurs."""
    counts = [{bar.low: bar.count for bar in side.histogram} for side in report.columns]
    highs = {bar.low: bar.high for side in report.columns for bar in side.histogram}
    most = max(max(side.values(), default=1) for side in counts)
    table = _table("characters", *(side.name for side in report.columns), right=("characters",))
    used = [low for low in highs if any(side.get(low) for side in counts)]
    for low in sorted(low for low in highs if min(used) <= low <= max(used)):
        span = f"{low:,}" if low == highs[low] else f"{low:,}–{highs[low]:,}"
        table.add_row(span, *(_bar(side.get(low, 0), most) for side in counts))
    return table


def _bar(count: int, most: int) -> str:
    return f"{'█' * round(BAR * count / most) or '▏'} {count:,}" if count else ""


def _labels(report: CorpusReport) -> Any:
    """How often each label was given; of many, the most and the least frequent."""
    table = _table("label", "count", "share", "", right=("count", "share"))
    given = list(report.labels.items())
    shown = given if len(given) <= LABELS else [*given[: LABELS - 3], ("…", 0), *given[-2:]]
    for name, count in shown:
        row = (f"{count:,}", f"{count / max(1, report.usable):.1%}", _bar(count, given[0][1]).split(" ")[0])
        table.add_row(name, *(row if count else ("", "", "")))
    return table


def _findings(report: CorpusReport, found: Sequence[Finding]) -> Any:
    from rich.markup import escape

    table = _table("found", "count", "share", "first lines", right=("count", "share"))
    for finding in found:
        share = f"{finding.count / max(1, report.rows):.2%}"
        table.add_row(escape(finding.description), f"{finding.count:,}", share, escape(_places(report, finding)))
    return table


def _places(report: CorpusReport, finding: Finding) -> str:
    """The first few line numbers, under the names of their files where there are several."""
    lines: dict[str, list[str]] = {}
    for place in finding.locations[:5]:
        lines.setdefault(Path(place.file).name, []).append(str(place.line))
    dots = " …" if finding.count > 5 else ""
    if report.kind == "pairs" or len(report.files) == 1:
        return ", ".join(number for numbers in lines.values() for number in numbers) + dots
    return "; ".join(f"{name}: {', '.join(numbers)}" for name, numbers in lines.items()) + dots


def _table(*columns: str, right: Sequence[str] | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        to_right = column in right if right is not None else number > 0 and column != "script"
        table.add_column(column, justify="right" if to_right else "left")
    return table
