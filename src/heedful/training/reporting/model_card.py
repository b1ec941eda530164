"""The model card of a run (card.md) and its loss curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from heedful.training.tasks.task import Task

CARD_FILE = "card.md"
LOSS_CURVE_FILE = "loss.png"


@dataclass(frozen=True)
class ModelCard:
    """The contents of card.md."""

    task: Task
    parameters: int
    data: dict[str, str]
    recipe: str
    scores: dict[str, Any]
    evaluated_on: str
    task_section: str
    """Markdown from `Task.card_section`."""
    plots: Mapping[str, Path]
    """Caption -> image file."""
    samples: Sequence[tuple[str, ...]]
    history: Sequence[dict[str, int | float]]
    machine: str
    best_step: int
    forecast: Sequence[tuple[str, str, str]]
    """Rows of quantity, forecast and measured value."""


def write_model_card(card: ModelCard, folder: Path) -> Path:
    """Write card.md and the loss curve into `folder`."""
    draw_loss_curve(card.history, folder / LOSS_CURVE_FILE, card.best_step, card.task.loss_unit)
    plots = "".join(f"\n![{caption}]({file.name})\n" for caption, file in card.plots.items())
    samples = [tuple(_escape(part) for part in sample) for sample in card.samples]
    text = f"""# {folder.name}: a model that {card.task.description}

{card.parameters:,} parameters · trained {date.today().isoformat()} with heedful on {card.machine}.

```python
heedful.load("{folder.name}").{card.task.name}({card.task.example_arguments})
```

## Scores

On {card.evaluated_on}. {card.task.score_note}

{table(("score", "value"), scalar_scores(card.scores))}

{checkpoint_selection(card)}

![loss]({LOSS_CURVE_FILE})
{card.task_section}{plots}
## Forecast and measurement

{table(("quantity", "forecast", "measured"), card.forecast)}

## Data

{table(("item", "value"), list(card.data.items()))}

## Samples

{table(card.task.sample_columns, samples)}

## Recipe

`heedful train {card.task.name} --recipe recipe.toml --out NEW` trains this model again.

```toml
{card.recipe.strip()}
```
"""
    file = folder / CARD_FILE
    file.write_text(text, encoding="utf-8")
    return file


def checkpoint_selection(card: ModelCard) -> str:
    """One sentence: which checkpoint of the run this is and how it was selected."""
    evaluations = sum("loss" not in row for row in card.history)  # rows with a loss are training steps
    return (
        f"This is the checkpoint of step {card.best_step:,}, the best of {evaluations} by {card.task.selection_metric} "
        "on a fixed sample of the validation set. The scores above were computed separately, after training."
    )


def scalar_scores(scores: dict[str, Any]) -> list[tuple[str, str]]:
    """The scores that fit a table cell; curves and matrices are plotted."""
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else _escape(str(value)))
        for name, value in scores.items()
        if not isinstance(value, dict | list)
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def draw_loss_curve(history: Sequence[dict[str, int | float]], file: Path, best_step: int, unit: str = "token") -> None:
    """Plot training and validation loss and mark the selected checkpoint."""
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
    axes.set_ylabel(f"loss, nats per {unit}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
