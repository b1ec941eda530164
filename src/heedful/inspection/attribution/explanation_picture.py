"""Picture of an explanation: scores as a heat map, next to the measured faithfulness of each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from heedful.inspection.attention_plot import drawn_text, heat_map, picture_fonts
from heedful.inspection.attribution.explained_output import Scores
from heedful.inspection.attribution.explanation import Explanation, relative_scores
from heedful.inspection.attribution.faithfulness import MethodFaithfulness

COLORS = "RdBu"
"""Blue raises the probability, red lowers it."""
LARGEST_INCHES = 40.0


def draw_explanation(explanation: Explanation, file: Path, kind: str) -> None:
    """Draw every method for one output, or the table of the most faithful method for several."""
    title, rows, scores = shown_table(explanation)
    columns = explanation.inputs.words
    measured = measured_methods(explanation)
    sizes = (1.8 + 0.5 * len(columns), 3.2 if measured else 0.0)
    height = 1.8 + 0.32 * max(len(rows), len(measured))
    size = (min(sum(sizes), LARGEST_INCHES), min(height, LARGEST_INCHES))
    figure = Figure(size, dpi=130, layout="constrained")
    axes = figure.subplots(1, 2 if measured else 1, width_ratios=sizes if measured else None, squeeze=False)[0]
    heat_map(axes[0], np.nan_to_num(relative_scores(scores)), rows, columns, cmap=COLORS, vmin=-1, vmax=1)
    if measured:
        draw_faithfulness(axes[1], measured)
    figure.suptitle(drawn_text(title), fontsize=10)
    with picture_fonts():
        figure.savefig(file, format=kind)


def draw_faithfulness(axes: Any, measured: list[MethodFaithfulness]) -> None:
    """The area of each method with its 95% interval, and a line at 0, which is chance."""
    for row, faithfulness in enumerate(measured):
        color = "#1f53b8" if faithfulness.beats_chance else "0.6"
        axes.plot([faithfulness.low, faithfulness.high], [row, row], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot(faithfulness.area, row, "o", color=color, markersize=5)
    axes.axvline(0, color="0.5", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(measured)), [faithfulness.method for faithfulness in measured], fontsize=9)
    axes.set_ylim(len(measured) - 0.5, -0.5)
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlabel("faithfulness (0 = chance)", fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)


def shown_table(explanation: Explanation) -> tuple[str, list[str], Scores]:
    """The title, rows and scores to show first: all methods for one output, else all outputs by one method."""
    if len(explanation.outputs) == 1:
        (output,) = explanation.outputs
        table = np.stack([attribution.scores[0] for attribution in explanation.attributions.values()])
        return f"why '{output.text}' ({output.probability:.0%})", list(explanation.attributions), table
    name = explanation.most_faithful
    rows = [f"{output.text} {output.probability:.0%}" for output in explanation.outputs]
    return f"why each word: {name}", rows, explanation.attributions[name].scores


def measured_methods(explanation: Explanation) -> list[MethodFaithfulness]:
    """The measured faithfulness of the methods, best first."""
    measured = [attribution.validation or attribution.faithfulness for attribution in explanation.ranked]
    return [faithfulness for faithfulness in measured if faithfulness]
