"""The end of a run: evaluate the best model and write its model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.device import describe_machine
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load
from heedful.models.build import count_parameters
from heedful.training.finetune import describe_pretrained
from heedful.training.forecast.forecast import ForecastComparison
from heedful.training.recipe import to_toml
from heedful.training.reporting.events import Events
from heedful.training.reporting.model_card import ModelCard, write_model_card
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun
from heedful.training.tasks import evaluate_model, get_task


def evaluate_and_report(
    prepared: PreparedRun,
    progress: RunProgress,
    comparison: Sequence[ForecastComparison],
    folder: Path,
    events: Events,
) -> TrainedModel:
    """Calibrate and evaluate the best model on the test files, or else the validation text, and write the card."""
    recipe, data, task = prepared.recipe, prepared.data, get_task(prepared.recipe.task)
    best = load(folder, device=prepared.device)
    task.calibrate(best, data, events.stage)
    evaluated_on = f"{len(recipe.data.test)} test file(s)" if recipe.data.test else "the validation text"
    scores = (
        evaluate_model(best, recipe.data.test, on_bad_line=recipe.data.on_bad_line, start_progress=events.stage)
        if recipe.data.test
        else task.evaluate_split(best, data.valid, events.stage)
    )
    card = ModelCard(
        task=task,
        parameters=count_parameters(best.model).total,
        data=describe_data(prepared),
        recipe=to_toml(recipe),
        scores=scores,
        evaluated_on=evaluated_on,
        task_section=task.card_section(best, scores),
        plots=task.plots(scores, folder),
        samples=task.samples(best, data.valid),
        history=progress.history,
        machine=describe_machine(prepared.device),
        best_step=progress.best_step,
        forecast=[row.formatted() for row in comparison],
    )
    file = write_model_card(card, folder)
    usage = ", ".join(f"{name} {actual}" for name, _, actual in card.forecast)
    events.note(f"scores     {task.headline(scores)}, on {evaluated_on}")
    events.note(f"took       {usage}")
    events.note(f"report     {file}")
    compared = [row._asdict() for row in comparison]
    events.emit("done", folder=str(folder), card=str(file), scores=scores, compared=compared)
    return best


def describe_data(prepared: PreparedRun) -> dict[str, str]:
    """The data section of the model card."""
    recipe, data, start = prepared.recipe, prepared.data, prepared.forecast.start
    facts = {"training files": ", ".join(Path(file).name for file in recipe.data.train)}
    for name, split in (("training", data.train), ("validation", data.valid)):
        facts[name] = get_task(recipe.task).split_size(split)
    facts["vocabulary"] = " and ".join(f"{len(tokenizer):,} {recipe.tokenizer.kind}" for tokenizer in data.tokenizers)
    facts |= {f"{issue.action}: {issue.description}": issue.count_and_location for issue in data.issues}
    return facts | ({"start": describe_pretrained(start)} if start else {})
