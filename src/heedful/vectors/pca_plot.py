"""Plot word vectors in two dimensions by principal component analysis (PCA)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import HeedfulError, UsageError
from heedful.files import atomic_file

Points = npt.NDArray[np.float32]
LABEL_OFFSETS = [(6, 0), (0, 8), (0, -8), (-6, 0), (6, 8), (6, -8), (-6, 8), (-6, -8), (14, 16), (14, -16), (-14, 16)]
"""Candidate positions of a label relative to its dot, in points; the first free one is used."""


def project_to_2d(vectors: Points) -> tuple[Points, tuple[float, float]]:
    """Project vectors onto their first two principal components; also return the variance share of each.

    X − mean = U S Vᵀ; points = U S[:2]        Pearson 1901

    The sign of each component is fixed (its largest entry is positive), so that the same words give the same plot.
    """
    centered = vectors - vectors.mean(axis=0)
    left, singular, right = np.linalg.svd(centered, full_matrices=False)
    signs = np.sign(right[np.arange(2), np.abs(right[:2]).argmax(axis=1)])
    variance = singular**2 / max(float((singular**2).sum()), 1e-12)
    points: Points = (left[:, :2] * singular[:2] * signs).astype(np.float32)
    return points, (float(variance[0]), float(variance[1]))


def draw_word_map(words: Sequence[str], vectors: Points, file: Path, *, title: str = "") -> Path:
    """Draw a labeled dot for each word."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if len(words) < 3:
        raise UsageError(f"a map needs at least three words, got {len(words)}")
    points, variance = project_to_2d(vectors)
    side = min(14.0, 6.0 + 0.06 * len(words))
    figure = Figure(figsize=(side * 1.2, side), dpi=130, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.scatter(points[:, 0], points[:, 1], s=14, color="#3b6ea5", zorder=2)
    axes.margins(0.12)
    axes.set_xlabel(f"first component: {variance[0]:.0%} of the variance")
    axes.set_ylabel(f"second component: {variance[1]:.0%}")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=11)
    canvas.draw()
    _add_labels(axes, words, points, canvas.get_renderer())
    try:
        with atomic_file(file) as temporary:
            figure.savefig(temporary, format=file.suffix.lstrip(".").lower() or "png")
    except (OSError, ValueError) as error:
        raise HeedfulError(f"{file} cannot be drawn: {getattr(error, 'strerror', None) or error}") from None
    return file


def _add_labels(axes: Any, words: Sequence[str], points: Points, renderer: Any) -> None:
    """Place each label at the offset with the fewest overlaps."""
    dots = axes.transData.transform(points)
    occupied: list[Any] = []
    for word, point in zip(words, points, strict=True):
        candidates = []
        for offset in LABEL_OFFSETS:
            label = axes.annotate(
                word,
                point,
                xytext=offset,
                textcoords="offset points",
                fontsize=9,
                ha="left" if offset[0] > 0 else "right" if offset[0] < 0 else "center",
                va="center" if offset[1] == 0 else "bottom" if offset[1] > 0 else "top",
            )
            box = label.get_window_extent(renderer)
            overlaps = sum(box.overlaps(other) for other in occupied) + sum(box.contains(*dot) for dot in dots)
            candidates.append((overlaps, label, box))
            if not overlaps:
                break
        _, label, box = min(candidates, key=lambda candidate: candidate[0])
        for _, other, _ in candidates:
            if other is not label:
                other.remove()
        occupied.append(box)
