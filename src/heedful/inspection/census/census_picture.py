"""Draw a census: a grid of heads for each attention, and bars for feed-forward nets, skips and positions."""

from __future__ import annotations

from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from heedful.inspection.census.census_result import AblateTo, Census, PartCensus

ABBREVIATIONS = {
    "previous token": "prev", "next token": "next", "same position": "same pos", "delimiter": "delim",
    "same token": "same tok", "alignment": "align", "alignment, read": "align, read", "rare word": "rare",
    "uniform": "even", "mixed": "",
}  # fmt: skip
WHOLE = "whole"


def draw_census(census: Census, file: Path | BytesIO, form: str, to: AblateTo | None = None) -> None:
    """Draw the rise of the loss without each part: rows are layers, columns are heads and the whole sub-layer."""
    from matplotlib.figure import Figure

    grids, others = _grids(census), _other_parts(census)
    largest = max([abs(_value(part, census, to)) for part in census.parts if part.head is not None] or [1e-9])
    columns = max((len(heads) for grid in grids.values() for heads in grid.values()), default=1)
    heights = [max(1, len(grid)) for grid in grids.values()] + ([max(1.5, 0.3 * len(others))] if others else [])
    width = max(7.0, 1.9 + 0.82 * columns)
    figure = Figure(figsize=(width, 1.2 + sum(0.55 * h + 0.65 for h in heights)), dpi=130, layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, (name, grid) in zip(axes, grids.items(), strict=False):
        _draw_grid(axis, name, grid, census, largest, to)
    if others:
        _draw_bars(axes[-1], others, census, to)
    replaced = to or census.to[0]
    figure.suptitle(
        f"{census.model}: rise of the loss per {census.unit} without each part ({replaced} in its place)\n"
        f"{census.texts:,} texts, loss {census.loss.value:.3f}; gray: no clear difference (95% interval)",
        fontsize=9,
    )
    figure.savefig(file, format=form)


def _grids(census: Census) -> dict[str, dict[int, list[PartCensus]]]:
    """For each kind of attention the heads of each layer, the whole attention last."""
    grids: defaultdict[str, defaultdict[int, list[PartCensus]]] = defaultdict(lambda: defaultdict(list))
    for part in census.parts:
        if part.kind in ("attention", "cross-attention") and part.layer is not None:
            grids[f"{part.stack} {'cross-attention' if part.kind == 'cross-attention' else 'self-attention'}"][
                part.layer
            ].append(part)
    return {
        name: {layer: sorted(heads, key=lambda part: (part.head is None, part.head)) for layer, heads in grid.items()}
        for name, grid in grids.items()
    }


def _other_parts(census: Census) -> list[PartCensus]:
    return [part for part in census.parts if part.kind not in ("attention", "cross-attention") or part.layer is None]


def _draw_grid(
    axes: Any, name: str, grid: dict[int, list[PartCensus]], census: Census, largest: float, to: AblateTo | None
) -> None:
    columns = max(map(len, grid.values()))
    table = np.full((len(grid), columns), np.nan)
    for row, heads in enumerate(grid.values()):
        for column, part in _placed(heads, columns):
            is_clear = _change(part, census, to).loss.excludes_zero
            table[row, column] = _value(part, census, to) if is_clear else 0.0
            _label(axes, part, census, row, column, table[row, column] / largest, to)
    axes.axvline(columns - 1.5, color="white", linewidth=4)
    axes.imshow(np.sqrt(np.clip(table / largest, 0, 1)), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(columns), [*map(str, range(columns - 1)), WHOLE], fontsize=7)
    axes.set_yticks(range(len(grid)), [f"layer {layer}" for layer in grid], fontsize=7)
    axes.set_title(f"{name}, heads", fontsize=8, loc="left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _placed(heads: list[PartCensus], columns: int) -> list[tuple[int, PartCensus]]:
    """Heads from the left, the whole attention in the last column."""
    return [(columns - 1 if head.head is None else index, head) for index, head in enumerate(heads)]


def _label(
    axes: Any, part: PartCensus, census: Census, row: int, column: int, share: float, to: AblateTo | None
) -> None:
    clear = _change(part, census, to).loss.excludes_zero
    color = "#8a8a8a" if not clear else "white" if share > 0.3 else "#1a1a1a"
    role = ABBREVIATIONS[part.role.role] if part.role else ""
    text = f"{_value(part, census, to):+.3f}" + (f"\n{role}" if role else "")
    axes.text(column, row, text, ha="center", va="center", fontsize=6, color=color)


def _draw_bars(axes: Any, parts: list[PartCensus], census: Census, to: AblateTo | None) -> None:
    values = [_value(part, census, to) for part in parts]
    intervals = [_change(part, census, to).loss for part in parts]
    errors = np.array([[max(0.0, i.value - i.low), max(0.0, i.high - i.value)] for i in intervals]).T
    colors = ["#2b6cb0" if i.excludes_zero else "#b5b5b5" for i in intervals]
    axes.barh(range(len(parts)), values, xerr=errors, color=colors, height=0.7, error_kw={"lw": 0.8})
    axes.set_yticks(range(len(parts)), [part.part for part in parts], fontsize=6)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_title("other parts", fontsize=8, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _change(part: PartCensus, census: Census, to: AblateTo | None) -> Any:
    wanted = to or census.to[0]
    return part.changes.get(wanted) or next(iter(part.changes.values()))


def _value(part: PartCensus, census: Census, to: AblateTo | None) -> float:
    value: float = _change(part, census, to).loss.value
    return value
