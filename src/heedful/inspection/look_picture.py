"""Pictures of a look: the alignment as ribbons above the heads of all layers, or one attention enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from heedful.inspection.attention_plot import drawn_text, heat_map, picture_fonts
from heedful.inspection.attention_table import AttentionTable, aligned_table, attention_table, selected_map
from heedful.inspection.look_result import AttentionMap, Look
from heedful.inspection.look_text import cut, display_width
from heedful.inspection.visible_text import right_to_left

BLUES = LinearSegmentedColormap.from_list(
    "weights", ["#f8fafe", "#dde8fd", "#bcd2f9", "#91b5f4", "#6593eb", "#3c72da", "#1f53b8", "#0f3a90"]
)
ROOT = PowerNorm(0.5, 0, 1)
"""Shades by the square root of the weight, so that small weights are visible."""
MUTED = "#5a5f69"
KINDS = {"cross": "cross-attention", "encoder": "self-attention of the encoder", "self": "self-attention"}
HEAD_INCHES = (0.6, 1.3)
"""Smallest and largest height of a head in the overview."""
RIBBON_INCHES = 2.2
LONGEST_LABEL = 24
LARGEST_INCHES = 40.0


def draw_look(look: Look, file: Path, kind: str, *, part: str | None = None, head: int | None = None) -> None:
    """Draw the overview, all heads of one attention, or one head's heat map."""
    with picture_fonts():
        if part is None and head is None:
            figure = _overview(look)
        else:
            name, number = selected_map(look, part, head)
            figure = _enlarged(look, name) if number is None else _one_head(look, name, number)
        figure.savefig(file, format=kind)


def draw_side_by_side(looks: Sequence[tuple[str, Look]], file: Path, kind: str) -> None:
    """Draw the attention of several models for one text as ribbons, one model per row."""
    with picture_fonts():
        tables = [(name, look, attention_table(look)) for name, look in looks]
        words = max((max(len(table.rows), len(table.columns)) for _, _, table in tables if table), default=1)
        width = _ribbon_width(words)
        slanted = any(_crowded(side, width) for _, _, table in tables if table for side in (table.rows, table.columns))
        height = RIBBON_INCHES + 0.6 + slanted * 1.2
        figure = Figure((width, height * len(tables)), dpi=130, layout="constrained")
        panels = figure.subfigures(len(tables), 1, squeeze=False)[:, 0]
        for panel, (name, look, table) in zip(panels, tables, strict=True):
            if table is not None:
                _ribbons(panel, table, slanted, f"{name} · {table.title}")
                continue
            panel.suptitle(drawn_text(f"{name} · no attention"), fontsize=9, color=MUTED)
            panel.text(0.5, 0.5, drawn_text(look.output_text), ha="center", fontsize=9)
        figure.savefig(file, format=kind)


def _one_head(look: Look, part: str, head: int) -> Figure:
    table = attention_table(look, part, head, "tokens")
    assert table is not None
    width, height = 2.2 + 0.34 * len(table.columns), 1.8 + 0.3 * len(table.rows)
    figure = Figure((min(width, LARGEST_INCHES), min(height, LARGEST_INCHES)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    image = heat_map(axes, table.weights, table.rows, table.columns, cmap=BLUES, norm=ROOT)
    figure.colorbar(image, ax=axes, shrink=0.6, label="weight (√ scale)")
    figure.suptitle(f"{table.title} · rows attend to columns", fontsize=10)
    return figure


def _enlarged(look: Look, part: str) -> Figure:
    """All heads of one attention as a grid of heat maps with token labels."""
    heads = look.attention[part].heads
    tables = [attention_table(look, part, head, "tokens") for head in range(heads)]
    first = tables[0]
    assert first is not None
    columns = min(heads, 4)
    rows = -(-heads // columns)
    size = (1.4 + 0.2 * len(first.columns), 1.2 + 0.2 * len(first.rows))
    figure = Figure(
        (min(columns * size[0], LARGEST_INCHES), min(0.6 + rows * size[1], LARGEST_INCHES)),
        dpi=110, layout="constrained",
    )  # fmt: skip
    for index, table in enumerate(tables):
        assert table is not None
        axes = figure.add_subplot(rows, columns, index + 1)
        heat_map(axes, table.weights, table.rows, table.columns, cmap=BLUES, norm=ROOT, fontsize=7)
        axes.set_xlabel(f"head {index}", fontsize=9)
    figure.suptitle(f"{part} · rows attend to columns", fontsize=10)
    return figure


def _overview(look: Look) -> Figure:
    """Ribbons of the alignment, or of the last layer, and below them every head of every layer."""
    table = attention_table(look)
    groups = [[attention for attention in look.attention.values() if attention.kind == kind] for kind in KINDS]
    groups = [group for group in groups if group]
    if table is None:
        return _answer_only(look)
    most_heads = max(attention.heads for group in groups for attention in group)
    words = max(len(table.rows), len(table.columns))
    width = min(LARGEST_INCHES, max(_ribbon_width(words), 1.2 + HEAD_INCHES[0] * most_heads))
    panel = min(HEAD_INCHES[1], max(HEAD_INCHES[0], 0.7 * width / most_heads))
    slanted = any(_crowded(labels, width) for labels in (table.columns, table.rows))
    longest = max(map(_inches, (*table.columns, *table.rows)))
    ratios = [RIBBON_INCHES + slanted * 1.4 * longest, *(0.4 + panel * len(group) for group in groups)]
    figure = Figure((width, sum(ratios)), dpi=130, layout="constrained")
    top, *boxes = figure.subfigures(1 + len(groups), 1, height_ratios=ratios, squeeze=False)[:, 0]
    _ribbons(top, table, slanted, _caption(look, table))
    for box, group in zip(boxes, groups, strict=True):
        _grid(box, group)
    return figure


def _ribbons(figure: Any, table: AttentionTable, slanted: bool, caption: str) -> None:
    """Column labels above, row labels below, connected by curves whose width is the weight."""
    axes = figure.add_subplot()
    figure.suptitle(drawn_text(caption), fontsize=9, color=MUTED)
    above, below = map(_label_positions, (table.columns, table.rows))
    for row, weights in enumerate(table.weights):
        for column, weight in enumerate(weights):
            if weight >= 0.02:
                curve = Curve(
                    [(above[column], 1), (above[column], 0.5), (below[row], 0.5), (below[row], 0)],
                    [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
                )
                line = {"edgecolor": "#3c72da", "linewidth": 7 * weight, "alpha": 0.45}
                axes.add_patch(PathPatch(curve, facecolor="none", capstyle="butt", **line))
    for labels, places, y, anchor in ((table.columns, above, 1.06, "bottom"), (table.rows, below, -0.06, "top")):
        style: dict[str, Any] = {"ha": "center", "va": anchor}
        if slanted:
            style = {"ha": "left" if anchor == "bottom" else "right", "rotation": 45, "rotation_mode": "anchor"}
        for label, x in zip(labels, places, strict=True):
            axes.text(x, y, drawn_text(cut(label, LONGEST_LABEL)), fontsize=9, **style)
    axes.set_xlim(-0.04, 1.04)
    axes.set_ylim(-0.02, 1.02)
    axes.axis("off")


def _ribbon_width(words: int) -> float:
    return min(LARGEST_INCHES, max(7.0, min(0.62 * words, max(14.0, 0.26 * words))))


def _label_positions(labels: Sequence[str]) -> Sequence[float]:
    """Horizontal positions of labels, from 0 to 1: right to left for right-to-left scripts."""
    places = [0.5] if len(labels) == 1 else np.linspace(0, 1, len(labels)).tolist()
    return places[::-1] if right_to_left(" ".join(labels)) else places


def _crowded(labels: Sequence[str], inches: float) -> bool:
    """Whether neighboring labels would touch if written horizontally."""
    widths = [_inches(label) for label in labels]
    room = 0.9 * inches / max(1, len(labels) - 1)
    return any((left + right) / 2 > room for left, right in pairwise(widths))


def _inches(label: str) -> float:
    return 0.09 * display_width(cut(label, LONGEST_LABEL))


def _caption(look: Look, table: AttentionTable) -> str:
    aligned = " (the head that aligns)" if aligned_table(look) else ""
    changes = f" · {'; '.join(look.interventions)}" if look.interventions else ""
    return f"{look.model} · {table.title}{aligned}{changes}"


def _grid(figure: Any, group: Sequence[AttentionMap]) -> None:
    """One small heat map per head: layers in rows."""
    heads = max(attention.heads for attention in group)
    name = "self-attention of the decoder" if group[0].rows == "target" and group[0].kind == "self" else None
    figure.suptitle(f"{name or KINDS[group[0].kind]}, {len(group)} × {heads} (layers × heads)", fontsize=9, color=MUTED)
    panels = figure.subplots(len(group), heads, squeeze=False)
    for row, table in zip(panels, group, strict=True):
        for head, axes in enumerate(row):
            axes.set_xticks([])
            axes.set_yticks([])
            for side in axes.spines.values():
                side.set_color("#e2e5ea")
            if head >= table.heads:
                axes.axis("off")
                continue
            axes.imshow(table.weights[head], cmap=BLUES, norm=ROOT, aspect="auto", interpolation="nearest")
        row[0].set_ylabel("" if table.layer is None else str(table.layer), rotation=0, fontsize=8, labelpad=10)


def _answer_only(look: Look) -> Figure:
    """The probabilities of a model without attention."""
    outputs = look.outputs[:40]
    figure = Figure((max(5.0, 0.5 * len(outputs)), 3), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.bar(range(len(outputs)), [output.probability for output in outputs], color="#3c72da")
    axes.set_xticks(range(len(outputs)), [drawn_text(output.text) for output in outputs], rotation=45)
    axes.set_ylim(0, 1)
    axes.set_ylabel("probability")
    figure.suptitle(drawn_text(f"{look.model} · no attention: the answer's probabilities"), fontsize=10)
    return figure
