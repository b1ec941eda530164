"""The report of a run: card.md and the loss curve beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from heedful.training.tasks.task import Task

CURVE = "loss.png"


@dataclass(frozen=True)
class ModelCard:
    """Everything the card tells."""

    task: Task
    parameters: int
    data: dict[str, str]
    recipe: str
    scores: dict[str, Any]
    evaluated_on: str
    task_section: str
    """What else was found out about the model, in the words of its task."""
    plots: Mapping[str, Path]
    """By what they show."""
    samples: Sequence[tuple[str, ...]]
    history: Sequence[dict[str, int | float]]
    machine: str
    best_step: int
    forecast: Sequence[tuple[str, str, str]]


def write_model_card(card: ModelCard, folder: Path) -> Path:
    """card.md for people, with the curve as a picture."""
    draw_curve(card.history, folder / CURVE, card.best_step, card.task.loss_unit)
    text = f"""# {folder.name}: a model that {card.task.description}

{card.parameters:,} parameters · trained {date.today().isoformat()} with heedful on {card.machine}.

```python
heedful.load("{folder.name}").{card.task.name}({card.task.example_arguments})
```

## Scores

On {card.evaluated_on}. {card.task.score_note}

{table(("score", "value"), plain(card.scores))}

{choice(card)}

![loss]({CURVE})
{card.task_section}{pictures(card)}
## Forecast against fact

{table(("what", "forecast", "fact"), card.forecast)}

## Data

{table(("what", "how much"), list(card.data.items()))}

## Samples

{table(card.task.sample_columns, [tuple(_cell(part) for part in sample) for sample in card.samples])}

## Recipe

`heedful train {card.task.name} --recipe recipe.toml --out NEW` makes this model again.

```toml
{card.recipe.strip()}
```
"""
    file = folder / "card.md"
    file.write_text(text, encoding="utf-8")
    return file


def choice(report: ModelCard) -> str:
    """Which model of the run this is, and why."""
    times = sum("loss" not in row for row in report.history)  # the others tell of training
    return (
        f"Kept is the model of step {report.best_step:,}, the best of {times} by {report.task.selection_metric}, on the same "
        "sample of validation text each time; the scores above were worked out anew."
    )


def plain(scores: dict[str, Any]) -> list[tuple[str, str]]:
    """The scores that are one number or word each; what else there is, is drawn."""
    return [(name, _cell(_number(value))) for name, value in scores.items() if not isinstance(value, dict | list)]


def pictures(report: ModelCard) -> str:
    return "".join(f"\n![{what}]({file.name})\n" for what, file in report.plots.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def draw_curve(history: Sequence[dict[str, int | float]], file: Path, best_step: int, each: str = "token") -> None:
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
    axes.set_ylabel(f"loss, nats per {each}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
