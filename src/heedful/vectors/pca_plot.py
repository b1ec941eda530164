"""Words on a map: their vectors seen from the side that shows most of how they differ (PCA)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import HeedfulError, UsageError

Points = npt.NDArray[np.float32]
SIDES = [(6, 0), (0, 8), (0, -8), (-6, 0), (6, 8), (6, -8), (-6, 8), (-6, -8), (14, 16), (14, -16), (-14, 16)]
"""Where a label may stand, in points from its dot; the first that is free is taken."""


def project_to_2d(vectors: Points) -> tuple[Points, tuple[float, float]]:
    """Each vector's place along the two directions in which they differ most, and what share of it each one shows.

    X − mean = U S Vᵀ; places U S[:2]        Pearson 1901

    A direction has no beginning and no end: the larger part of it is made to point up, so that the same words give
    the same map.
    """
    centred = vectors - vectors.mean(axis=0)
    left, spread, right = np.linalg.svd(centred, full_matrices=False)
    turned = np.sign(right[np.arange(2), np.abs(right[:2]).argmax(axis=1)])
    shown = spread**2 / max(float((spread**2).sum()), 1e-12)
    places: Points = (left[:, :2] * spread[:2] * turned).astype(np.float32)
    return places, (float(shown[0]), float(shown[1]))


def draw_word_map(words: Sequence[str], vectors: Points, file: Path, *, title: str = "") -> Path:
    """A dot and a name for each word; near on the map means alike, as far as two directions can show it."""
    if len(words) < 3:
        raise UsageError(f"a map needs three words at least, got {len(words)}")
    figure_type, canvas_type = _matplotlib()
    places, shown = project_to_2d(vectors)
    side = min(14.0, 6.0 + 0.06 * len(words))
    figure = figure_type(figsize=(side * 1.2, side), dpi=130, layout="constrained")
    canvas = canvas_type(figure)
    axes = figure.add_subplot()
    axes.scatter(places[:, 0], places[:, 1], s=14, color="#3b6ea5", zorder=2)
    axes.margins(0.12)
    axes.set_xlabel(f"first direction: {shown[0]:.0%} of how they differ")
    axes.set_ylabel(f"second: {shown[1]:.0%}")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=11)
    canvas.draw()
    _label(axes, words, places, canvas.get_renderer())
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise HeedfulError(f"{file} cannot be drawn: {error}") from None
    return file


def _label(axes: Any, words: Sequence[str], places: Points, renderer: Any) -> None:
    """Names beside their dots, where no other name or dot is yet, if there is such a place."""
    dots = axes.transData.transform(places)
    taken: list[Any] = []
    for word, place in zip(words, places, strict=True):
        tried = []
        for side in SIDES:
            label = axes.annotate(
                word,
                place,
                xytext=side,
                textcoords="offset points",
                fontsize=9,
                ha="left" if side[0] > 0 else "right" if side[0] < 0 else "center",
                va="center" if side[1] == 0 else "bottom" if side[1] > 0 else "top",
            )
            box = label.get_window_extent(renderer)
            crossed = sum(box.overlaps(other) for other in taken) + sum(box.contains(*dot) for dot in dots)
            tried.append((crossed, label, box))
            if not crossed:
                break
        crossed, label, box = min(tried, key=lambda found: found[0])
        for _, other, _ in tried:
            if other is not label:
                other.remove()
        taken.append(box)


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UsageError("drawing needs matplotlib: pip install matplotlib") from None
    return Figure, FigureCanvasAgg
