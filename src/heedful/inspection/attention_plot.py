"""Draw attention weights as a heat map."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from heedful.inspection.visible_text import right_to_left, visible
from heedful.shapes import Float

FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans Hebrew",
         "Noto Sans Thai", "Symbola")  # fmt: skip
"""Installed ones are tried in this order for each character."""


def draw_attention(
    weights: Float[Tensor, "queries keys"],
    queries: Sequence[str],
    keys: Sequence[str],
    file: Path,
    *,
    title: str = "",
) -> Path:
    """Draw queries in rows and keys in columns; darker means more weight."""
    from matplotlib.figure import Figure

    with picture_fonts():
        figure = Figure(figsize=(1.5 + 0.33 * len(keys), 1.4 + 0.3 * len(queries)), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        heat_map(axes, weights.float().cpu().numpy(), queries, keys, cmap="Blues", vmin=0, vmax=1, rotation=0)
        if title:
            figure.suptitle(drawn_text(title), fontsize=10)
        figure.savefig(file)
    return file


def heat_map(
    axes: Any, weights: Any, queries: Sequence[str], keys: Sequence[str], *, fontsize: int = 9, rotation: int = 45,
    **image: Any,
) -> Any:  # fmt: skip
    """Draw a heat map with its labels on these axes; returns matplotlib's image."""
    if right_to_left(" ".join(keys)):
        weights, keys = np.asarray(weights)[:, ::-1], keys[::-1]
    drawn = axes.imshow(np.asarray(weights), aspect="auto", interpolation="nearest", **image)
    anchor = {"ha": "left", "rotation_mode": "anchor"} if rotation else {}
    axes.set_xticks(range(len(keys)), [drawn_text(key) for key in keys], fontsize=fontsize, rotation=rotation, **anchor)
    axes.set_yticks(range(len(queries)), [drawn_text(query) for query in queries], fontsize=fontsize)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks([x - 0.5 for x in range(1, len(keys))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(queries))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5 if len(keys) < 40 else 0.4)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return drawn


def drawn_text(text: str) -> str:
    """A label for matplotlib: invisible characters are replaced, and dollar signs escaped."""
    return visible(text).replace("$", r"\$")


@contextmanager
def picture_fonts() -> Iterator[None]:
    """Use fonts for many scripts; an SVG keeps its text, so that the viewer's fonts draw it.

    A character that no installed font has is drawn as a box.
    """
    from matplotlib import rc_context

    settings: Any = {"font.family": _installed_fonts(), "svg.fonttype": "none"}
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing")
        yield


def _installed_fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return [font for font in FONTS if font in installed] or ["sans-serif"]
