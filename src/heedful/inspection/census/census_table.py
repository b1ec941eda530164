"""A census as text: parts ranked by the rise of the loss without them."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.inspection.census.census_result import Census, Change, PartCensus
from heedful.inspection.census.paired_bootstrap import Interval


def census_table(census: Census, *, rows: int | None = None) -> str:
    """The ranked table; a table longer than `rows` is cut in the middle."""
    parts = census.ranked()
    header = ["rank", "without", *_column_names(census), "attends to"]
    numbered = [[str(rank), *_cells(census, part)] for rank, part in enumerate(parts, start=1)]
    if rows is not None and len(numbered) > rows + 1:  # one row more takes no more room than saying so
        first = rows - rows // 3
        gap = ["…", f"{len(numbered) - rows:,} more", *[""] * (len(header) - 2)]
        numbered = [*numbered[:first], gap, *numbered[first - rows :]]
    return "\n".join([*summary(census), "", *_aligned([header, *numbered]), *_notes(census)])


def summary(census: Census) -> list[str]:
    """The unchanged model's scores, and a legend of the numbers."""
    skipped = f" ({census.skipped:,} texts left out: too long, or without an answer)" if census.skipped else ""
    scores = census.translations
    translated = "" if scores is None else f"; {scores.texts:,} greedy translations: BLEU {scores.bleu:.1f}"
    outputs = f" with {census.outputs:,} {_plural(census.unit)}"
    one_each = census.unit == "class" and census.outputs == census.texts
    return [
        f"{census.model}: {census.texts:,} texts{'' if one_each else outputs}{skipped}{translated}",
        f"loss {census.loss.value:.4f} per {census.unit}, {_percent(census.accuracy.value)} right; "
        f"{len(census.parts)} parts switched off in turn in {census.seconds:,.0f} s",
        "change in loss with its 95% interval (paired bootstrap over texts), and in accuracy in points",
    ]


def role_text(part: PartCensus) -> str:
    """The role of a head, with the measured share."""
    if part.role is None:
        return ""
    if part.role.share is None:
        return f"{part.role.role} (entropy {part.role.entropy:.0%})"
    chance = part.role.chances[part.role.role]
    return f"{part.role.role} {part.role.share:.0%} (even: {chance:.0%})"


def _column_names(census: Census) -> list[str]:
    names = [column for to in census.to for column in (f"loss, {to}", "95% interval", "accuracy")]
    return names[:3] + ["BLEU", "chrF"] * (census.translations is not None) + names[3:]


def _cells(census: Census, part: PartCensus) -> list[str]:
    first, *others = (part.changes.get(to) for to in census.to)
    translated = [] if census.translations is None else _translation_cells(first)
    cells = [*_change(first), *translated, *(cell for choice in others for cell in _change(choice))]
    return [part.part, *cells, role_text(part)]


def _translation_cells(change: Change | None) -> list[str]:
    scores = (None, None) if change is None else (change.bleu, change.chrf)
    return ["" if score is None else f"{score:+.1f}" for score in scores]


def _change(change: Change | None) -> list[str]:
    if change is None:
        return ["", "", ""]
    return [f"{change.loss.value:+.4f}", _interval(change.loss), f"{100 * change.accuracy.value:+.1f}"]


def _interval(interval: Interval) -> str:
    clear = "" if interval.excludes_zero else " ?"
    return f"{interval.low:+.4f} … {interval.high:+.4f}{clear}"


def _notes(census: Census) -> list[str]:
    notes = ["", "?  the interval includes zero: no clear difference on these texts"]
    if (head := census.aligning_head) is not None:
        relation = "the same" if head.agrees else "another"
        notes.append(f"aligns best: {head.trained} when trained, {head.census} by the rules of this census: {relation}")
    return notes


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = {1, len(widths) - 1}
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _plural(unit: str) -> str:
    return {"class": "classes", "answer boundary": "answer boundaries"}.get(unit, f"{unit}s")


def _percent(share: float) -> str:
    return f"{share:.1%}"
