"""Draw attention weights as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from heedful.shapes import Float


def draw_attention(
    weights: Float[Tensor, "queries keys"],
    queries: Sequence[str],
    keys: Sequence[str],
    file: Path,
    *,
    title: str = "",
) -> Path:
    """Draw queries in rows and keys in columns; darker means more weight."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["font.sans-serif"] = [
        "DejaVu Sans",
        "Noto Sans CJK JP",
        "Noto Sans Devanagari",
        *rcParams["font.sans-serif"],
    ]
    figure = Figure(figsize=(1.5 + 0.33 * len(keys), 1.4 + 0.3 * len(queries)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(weights.float().cpu().numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(keys)), [_visible(key) for key in keys])
    axes.set_yticks(range(len(queries)), [_visible(query) for query in queries])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks([x - 0.5 for x in range(1, len(keys))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(queries))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.savefig(file)
    return file


def _visible(text: str) -> str:
    """Make a space visible."""
    return "␣" if text == " " else text.strip() or "␣"
