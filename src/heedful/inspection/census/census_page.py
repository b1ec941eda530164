"""A census as one self-contained page: the picture, and the ranked table."""

from __future__ import annotations

import re
from html import escape
from io import BytesIO
from typing import Any

from heedful.inspection.census.census_picture import draw_census
from heedful.inspection.census.census_result import Census, PartCensus
from heedful.inspection.census.census_table import role_text, summary

STYLE = """
.census{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;max-width:72rem;margin:2rem auto;padding:0 1rem}
.census svg{width:100%;max-width:60rem;height:auto}
.census table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
.census th,.census td{padding:.15rem .6rem;white-space:nowrap;text-align:right;border-bottom:1px solid #e5e5e5}
.census .name{text-align:left;font-family:ui-monospace,monospace}
.census .unclear{color:#777}
"""


def census_page(census: Census) -> str:
    """The self-contained page, without scripts."""
    title = escape(f"Census of {census.model}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>{census_fragment(census)}</body></html>\n"
    )


def census_fragment(census: Census) -> str:
    """The picture and the table as HTML, for a page or a notebook."""
    lines = "<br>".join(escape(line) for line in summary(census))
    columns = "".join(f"<th>loss, {to}</th><th>95% interval</th><th>accuracy</th>" for to in census.to)
    rows = "\n".join(_row(rank, part, census) for rank, part in enumerate(census.ranked(), start=1))
    return (
        f'<style>{STYLE}</style><main class="census"><h1>Census of {escape(census.model)}</h1><p>{lines}</p>\n'
        f"{_svg(census)}\n<table><thead><tr><th>rank</th><th class='name'>without</th>{columns}"
        f"<th class='name'>attends to</th></tr></thead><tbody>\n{rows}\n</tbody></table></main>"
    )


def _row(rank: int, part: PartCensus, census: Census) -> str:
    cells = "".join(_cells(part.changes.get(to)) for to in census.to)
    role = escape(role_text(part))
    return f"<tr><td>{rank}</td><td class='name'>{escape(part.part)}</td>{cells}<td class='name'>{role}</td></tr>"


def _cells(change: Any) -> str:
    if change is None:
        return "<td></td><td></td><td></td>"
    loss, kind = change.loss, "" if change.loss.excludes_zero else ' class="unclear"'
    return (
        f"<td{kind}>{loss.value:+.4f}</td><td{kind}>{loss.low:+.4f} … {loss.high:+.4f}</td>"
        f"<td>{100 * change.accuracy.value:+.1f}</td>"
    )


def _svg(census: Census) -> str:
    content = BytesIO()
    draw_census(census, content, "svg")
    return re.sub(r"^.*?(?=<svg)", "", content.getvalue().decode(), flags=re.DOTALL)
