"""Plots of a study: one panel per measure, means over seeds with their 95% intervals, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heedful.lab.intervals import Estimate
from heedful.lab.study import Factor, Measure, Variant
from heedful.lab.study_results import Results, shown_interval

COLORS = ("#1f5fa8", "#c4572b", "#3b8554", "#8461a9", "#8a6d1d", "#4d8fa0", "#a33b5c", "#666666")
MARKERS = "osD^vPX*"
MOST_BARS, MOST_TICKS = 12, 7
"""Curves with more points get a band of intervals; axes with more values get ticks at powers of two."""


@dataclass(frozen=True)
class Dots:
    """A dot with its interval for every variant."""

    measure: str
    log: bool = False


@dataclass(frozen=True)
class Lines:
    """A measure against a numeric factor or, without one, along a curve.

    Variants that differ in other factors are separate lines. `where` selects some of them.
    """

    measure: str
    x: str | None = None
    points: tuple[int | float, ...] = ()
    """The x values of a curve; empty: 1, 2, 3 …"""
    x_title: str = ""
    log_x: bool = False
    log: bool = False
    mark: int | float | None = None
    """Position of a dashed line across the axis."""
    where: tuple[tuple[str, Factor], ...] = ()


Panel = Dots | Lines


def draw(results: Results, file: Path) -> list[Path]:
    """Draw all panels of a study side by side; `file` without its suffix gives a PNG and an SVG file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = results.study.panels
    rows = max((len(results.study.variants) for panel in panels if isinstance(panel, Dots)), default=0)
    style = {
        "font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
        "axes.titlesize": 9, "legend.frameon": False, "legend.fontsize": 7, "svg.hashsalt": "heedful",
    }  # fmt: skip
    with rc_context(style):  # type: ignore[arg-type]
        height = max(2.6, 0.8 + 0.21 * rows)
        figure = Figure(figsize=(1.2 + 2.9 * len(panels), height), dpi=110, layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        labeled = next((panel for panel in panels if isinstance(panel, Dots)), None)
        legends = []
        for axes, panel in zip(grid, panels, strict=True):
            measure = results.study.find_measure(panel.measure)
            axes.set_title(measure.title)
            if isinstance(panel, Dots):
                draw_dots(axes, results, panel, labels=panel is labeled)
            else:
                draw_lines(axes, results, panel)
                legends.append(axes.get_legend_handles_labels())
            if measure.unit == "percent":
                _percent_axis(axes, "x" if isinstance(panel, Dots) else "y")
        _draw_legend(figure, grid, legends)
        files = [file.with_name(f"{file.name}.{suffix}") for suffix in ("png", "svg")]
        for path in files:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    reduce_colors(files[0])
    return files


def _draw_legend(figure: Any, grid: Any, legends: list[Any]) -> None:
    """Draw one legend below if all panels have the same lines, else one in each panel."""
    if not legends or max(len(labels) for _, labels in legends) < 2:
        return
    if all(labels == legends[0][1] for _, labels in legends):
        handles, labels = legends[0]
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3 * len(grid)))
        return
    for axes in grid:
        if axes.get_legend_handles_labels()[1]:
            axes.legend()


def reduce_colors(file: Path) -> None:
    """Store a PNG file with a palette of 256 colors: a third of the size."""
    from PIL import Image

    with Image.open(file) as picture:
        reduced = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def draw_dots(axes: Any, results: Results, panel: Dots, *, labels: bool) -> None:
    """Draw one dot with its interval for each variant, from top to bottom."""
    study, variants = results.study, results.study.variants
    for row, variant in enumerate(variants):
        value = shown(study.find_measure(panel.measure), results.estimate(panel.measure, dict(variant.factors)))
        _error_bar(axes.errorbar, [value.mean], [row], [value], axis="x", color=COLORS[0])
    names = [study.label(dict(variant.factors)) for variant in variants]
    axes.set_yticks(range(len(variants)), names if labels else [])
    axes.set_ylim(len(variants) - 0.5, -0.5)
    if panel.log:
        axes.set_xscale("log")


def draw_lines(axes: Any, results: Results, panel: Lines) -> None:
    """One line for each combination of the other factors; intervals as bars."""
    series: dict[tuple[tuple[str, Factor], ...], list[Variant]] = {}
    for variant in results.study.variants:
        if variant.matches(dict(panel.where)):
            key = tuple(pair for pair in variant.factors if pair[0] != panel.x)
            series.setdefault(key, []).append(variant)
    unnamed, measure = [pair[0] for pair in panel.where], results.study.find_measure(panel.measure)
    for number, (key, variants) in enumerate(series.items()):
        if panel.x is None:
            estimates = results.curve(panel.measure, dict(variants[0].factors))
            xs: Sequence[Any] = panel.points or range(1, len(estimates) + 1)
        else:
            estimates = [results.estimate(panel.measure, dict(variant.factors)) for variant in variants]
            xs = [float(variant[panel.x]) for variant in variants]
        estimates = [shown(measure, value) for value in estimates]
        xs, style = xs[: len(estimates)], {
            "color": COLORS[number % len(COLORS)], "linewidth": 1.2,
            "label": results.study.label({name: value for name, value in key if name not in unnamed}),
        }  # fmt: skip
        if len(estimates) > MOST_BARS:
            _band(axes, xs, estimates, log=panel.log, **style)
        else:
            style["marker"] = MARKERS[number % len(MARKERS)]
            xs = _shifted(xs, number - (len(series) - 1) / 2, log=panel.log_x)
            _error_bar(axes.errorbar, xs, [value.mean for value in estimates], estimates, axis="y", **style)
    if panel.mark is not None:
        axes.axvline(panel.mark, color="#666666", linewidth=1, linestyle="--")
    axes.set_xlabel(panel.x_title or (panel.x or "").replace("_", " "))
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.x is not None or panel.points:
        _ticks_at(axes.xaxis, results.study.factors[panel.x] if panel.x else panel.points, log=panel.log_x)
    if panel.log:
        axes.set_yscale("log")
        _log_ticks(axes.yaxis)


def _shifted(xs: Sequence[Any], number: float, *, log: bool) -> list[float]:
    """Shift the values of a line slightly, so that the intervals of lines do not overlap."""
    if log:
        return [x * 2 ** (0.06 * number) for x in xs]
    return [x + 0.008 * number * (max(xs) - min(xs)) for x in xs]


def shown(measure: Measure, value: Estimate) -> Estimate:
    """The estimate with the interval that is drawn."""
    low, high = shown_interval(measure, value)
    return replace(value, low=low, high=high)


def _error_bar(
    plot: Any, xs: Sequence[Any], ys: Sequence[Any], estimates: Sequence[Estimate], *, axis: str, **style: Any
) -> None:
    lows = [value.mean - value.low if value.has_interval else 0.0 for value in estimates]
    highs = [value.high - value.mean if value.has_interval else 0.0 for value in estimates]
    defaults = {"marker": "o", "markersize": 3.5, "elinewidth": 1.0, "capsize": 0, "linestyle": "-"}
    plot(xs, ys, **{f"{axis}err": (lows, highs)}, **{**defaults, **style})


def _band(axes: Any, xs: Sequence[Any], estimates: Sequence[Estimate], *, log: bool, **style: Any) -> None:
    """A line with its intervals as a band, for curves of many points; on a log axis cut off at a tenth of the means."""
    axes.plot(xs, [value.mean for value in estimates], **style)
    if all(value.has_interval for value in estimates):
        lows = [max(value.low, value.mean / 10) if log else value.low for value in estimates]
        highs = [value.high for value in estimates]
        axes.fill_between(xs, lows, highs, color=style["color"], alpha=0.15, linewidth=0)


def _ticks_at(axis: Any, values: Sequence[Any], *, log: bool) -> None:
    """Put ticks at the measured values (as integers if possible), or at powers of two if there are many."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if len(values) <= MOST_TICKS or not log:
        axis.set_ticks([float(value) for value in values])


def _log_ticks(axis: Any) -> None:
    """Put ticks at 1, 2 and 5 times the powers of ten if the axis spans few of them, in plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if 0 < low < high < 1000 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _percent_axis(axes: Any, name: str) -> None:
    """Format as percent; if all means are in 0–100, limit the axis to that range and cut off wider intervals."""
    from matplotlib.ticker import FuncFormatter

    formatter = FuncFormatter(lambda value, _: f"{round(100 * value, 10):g}%")
    getattr(axes, f"{name}axis").set_major_formatter(formatter)
    means = [float(value) for line in axes.lines for value in getattr(line, f"get_{name}data")()]
    if getattr(axes, f"get_{name}scale")() == "linear" and max(means, default=0.0) <= 1:
        getattr(axes, f"set_{name}lim")(-0.03, 1.03)
