"""The end of a run: the best model scored, shown at work, and reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.data.dataset_preparation import PreparedData
from heedful.device import describe_machine
from heedful.inference.trained import TrainedModel, load_as_stored
from heedful.models.build import count_parameters
from heedful.training.finetune import describe_pretrained
from heedful.training.forecast.forecast import ForecastComparison
from heedful.training.recipe import Recipe, to_toml
from heedful.training.reporting.events import Events
from heedful.training.reporting.model_card import ModelCard, write_model_card
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun
from heedful.training.tasks import evaluate_model, get_task


def evaluate_and_report(ready: PreparedRun, progress: RunProgress, compared: Sequence[ForecastComparison], folder: Path, events: Events) -> TrainedModel:
    """Look into the best model, score it on the test files, or else on what was held out, and write the card."""
    recipe, data, task = ready.recipe, ready.data, get_task(ready.recipe.task)
    best = load_as_stored(folder, device=ready.device)
    task.calibrate(best, data, events.stage)
    scored_on = f"{len(recipe.data.test)} test file(s)" if recipe.data.test else "the validation text"
    scores = (
        evaluate_model(best, recipe.data.test, on_bad_line=recipe.data.on_bad_line, start_progress=events.stage)
        if recipe.data.test
        else task.evaluate_split(best, data.valid, events.stage)
    )
    report = ModelCard(
        task=task,
        parameters=count_parameters(best.model).total,
        data=describe_data(recipe, data) | ({"start": describe_pretrained(ready.forecast.start)} if ready.forecast.start else {}),
        recipe=to_toml(recipe),
        scores=scores,
        evaluated_on=scored_on,
        task_section=task.card_section(best, scores),
        plots=task.plots(scores, folder),
        samples=task.samples(best, data.valid),
        history=progress.history,
        machine=describe_machine(ready.device),
        best_step=progress.best_step,
        forecast=[row.formatted() for row in compared],
    )
    card = write_model_card(report, folder)
    took = ", ".join(f"{name} {fact}" for name, _, fact in report.forecast)
    for line in (
        f"scores     {task.headline(scores)}, on {scored_on}",
        f"took       {took}",
        f"report     {card}",
    ):
        events.emit("note", text=line)
    events.emit("done", folder=str(folder), card=str(card), scores=scores, compared=[row._asdict() for row in compared])
    return best


def describe_data(recipe: Recipe, data: PreparedData) -> dict[str, str]:
    facts = {"training files": ", ".join(Path(file).name for file in recipe.data.train)}
    for name, split in (("training", data.train), ("validation", data.valid)):
        facts[name] = get_task(recipe.task).split_size(split)
    facts["vocabulary"] = " and ".join(f"{len(tokenizer):,} {recipe.tokenizer.kind}" for tokenizer in data.tokenizers)
    said = {f"{remark.action}: {remark.description}": remark.count_and_location for remark in data.issues}
    return facts | said
