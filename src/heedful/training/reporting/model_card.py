"""The model card of a run (card.md) and its loss curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from heedful.data.corpus_files import named_checksums
from heedful.device import describe_machine
from heedful.files import write_atomic
from heedful.inference.trained_model import TrainedModel
from heedful.models.build import count_parameters
from heedful.training.finetune import describe_pretrained
from heedful.training.forecast.forecast import ForecastComparison
from heedful.training.recipe import to_toml
from heedful.training.reporting.faithfulness_section import faithfulness_section
from heedful.training.reporting.verdict import Verdict
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun
from heedful.training.tasks import get_task

CARD_FILE = "card.md"
LOSS_CURVE_FILE = "loss.png"


def write_model_card(
    prepared: PreparedRun,
    best: TrainedModel,
    progress: RunProgress,
    scores: dict[str, Any],
    samples: Sequence[tuple[str, ...]],
    evaluated_on: str,
    verdict: Verdict,
    comparison: Callable[[], Sequence[ForecastComparison]],
    folder: Path,
) -> Path:
    """Write card.md and the plots into `folder`; `comparison` is called last, to include nearly all the time."""
    task = get_task(prepared.recipe.task)
    parameters = count_parameters(best.model).total
    section = task.card_section(best, scores)
    plots = "".join(f"\n![{caption}]({file.name})\n" for caption, file in task.plots(scores, folder).items())
    rows = [tuple(_escape(part) for part in sample) for sample in samples]
    draw_loss_curve(progress.history, folder / LOSS_CURVE_FILE, progress.best_step, task.loss_unit)
    evaluations = sum("loss" not in row for row in progress.history)  # rows with a loss are training steps
    text = f"""# {folder.name}: a model that {task.description}

{parameters:,} parameters · trained {date.today().isoformat()} with heedful on {describe_machine(prepared.device)}.

```python
heedful.load("{folder.name}").{task.name}({task.example_arguments})
```

## Verdict

{verdict.sentence()}

## Scores

On {evaluated_on}. {task.score_note}

{table(("score", "value"), scalar_scores(scores))}

This is the checkpoint of step {progress.best_step:,}, the best of {evaluations} by {task.selection_metric} \
on a fixed sample of the validation set. The scores above were computed separately, after training.

![loss]({LOSS_CURVE_FILE})
{section}{plots}
## Explanations

{faithfulness_section(best, folder.name)}

## Forecast and measurement

{table(("quantity", "forecast", "measured"), [row.formatted() for row in comparison()])}

## Data

{table(("item", "value"), describe_data(prepared))}

## Samples

{table(task.sample_columns, rows)}

## Recipe

`heedful train {task.name} --recipe recipe.toml --out NEW` trains this model again.

```toml
{to_toml(prepared.recipe).strip()}
```
"""
    file = folder / CARD_FILE
    write_atomic(file, text)
    return file


def describe_data(prepared: PreparedRun) -> list[tuple[str, str]]:
    """The training data, in pairs of item and value."""
    recipe, data, start = prepared.recipe, prepared.data, prepared.forecast.start
    split_size = get_task(recipe.task).split_size
    facts = {
        "training files": named_checksums(recipe.data.train),
        "training": split_size(data.train),
        "validation": split_size(data.valid),
        "vocabulary": " and ".join(f"{len(tokenizer):,} {recipe.tokenizer.kind}" for tokenizer in data.tokenizers),
        **{f"{issue.action}: {issue.description}": issue.count_and_location for issue in data.issues},
    }
    return list((facts | ({"start": describe_pretrained(start)} if start else {})).items())


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
