"""The report of a run: card.md and the loss curve beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

CURVE = "loss.png"
RELIABILITY = "reliability.png"


@dataclass(frozen=True)
class Report:
    """Everything the card tells."""

    task: str
    parameters: int
    data: dict[str, str]
    recipe: str
    scores: dict[str, Any]
    scored_on: str
    alignment: str
    """Which head aligns; "" for a model that has none."""
    samples: Sequence[tuple[str, ...]]
    history: Sequence[dict[str, int | float]]
    machine: str
    best_step: int
    forecast: Sequence[tuple[str, str, str]]


def write_card(report: Report, folder: Path) -> Path:
    """card.md for people, with the curve as a picture."""
    draw_curve(report.history, folder / CURVE, report.best_step)
    text = f"""# {folder.name}: a model that {VERBS[report.task]}

{report.parameters:,} parameters · trained {date.today().isoformat()} with heedful on {report.machine}.

```python
heedful.load("{folder.name}").{report.task}("…")
```

## Scores

On {report.scored_on}. {NOTES[report.task]}

{table(("score", "value"), [(name, _cell(_number(value))) for name, value in report.scores.items()])}

![loss]({CURVE})
{inside(report)}
## Forecast against fact

{table(("what", "forecast", "fact"), report.forecast)}

## Data

{table(("what", "how much"), list(report.data.items()))}

## Samples

{table(SAMPLES[report.task], [tuple(_cell(part) for part in sample) for sample in report.samples])}

## Recipe

`heedful train {report.task} --recipe recipe.toml --out NEW` makes this model again.

```toml
{report.recipe.strip()}
```
"""
    file = folder / "card.md"
    file.write_text(text, encoding="utf-8")
    return file


def inside(report: Report) -> str:
    """Which head aligns, and whether probabilities mean what they say: for translators."""
    if not report.alignment:
        return ""
    scores = report.scores
    return f"""
## Alignment and confidence

{report.alignment}

A word's probability is off by {scores["word_calibration_error"]:.3f} on average
({scores["word_calibration_error_raw"]:.3f} before correction) from the share of such words that are right: that the
reference has, too, in the same order.

![reliability]({RELIABILITY})
"""


VERBS = {"translate": "translates", "generate": "writes"}
NOTES = {
    "translate": "BLEU is cased and detokenised, with a 95% bootstrap interval; the signature says how to compare it.",
    "generate": "Bits per byte compare across tokenizers; perplexity per token does not.",
}
SAMPLES = {"translate": ("source", "model", "reference"), "generate": ("the model, left to itself",)}


def headline(task: str, scores: dict[str, Any]) -> str:
    """The scores a person asks for first."""
    if task == "generate":
        return f"{scores['bits_per_byte']:.3f} bits per byte, perplexity {scores['perplexity']:.2f} per token"
    return (
        f"BLEU {scores['bleu']:.1f} (95%: {scores['bleu_low']:.1f} to {scores['bleu_high']:.1f}), "
        f"chrF {scores['chrf']:.1f}, exact match {scores['exact_match']:.1%} of {scores['texts']:,}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def draw_curve(history: Sequence[dict[str, int | float]], file: Path, best_step: int) -> None:
    """Training and validation loss, and where the best model was found."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, label, style in (("loss", "training", "-"), ("valid_loss", "validation", "o-")):
        points = [(row["step"], row[name]) for row in history if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4, linewidth=1.5)
    axes.axvline(best_step, color="0.7", linewidth=1, linestyle=":", label=f"best, step {best_step}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
