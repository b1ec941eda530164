"""The end of a run: evaluate the best model and write its model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from heedful.data.corpus_readers import has_tables
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load
from heedful.training.checkpoint.run_manifest import read_run_manifest
from heedful.training.forecast.forecast import ForecastComparison
from heedful.training.reporting.events import Events
from heedful.training.reporting.model_card import write_model_card
from heedful.training.reporting.verdict import TrainingCourse, judge_run
from heedful.training.run_catalog import previous_run
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun
from heedful.training.tasks import EvaluationOptions, evaluate_model, get_task


def evaluate_and_report(
    prepared: PreparedRun,
    progress: RunProgress,
    comparison: Sequence[ForecastComparison],
    folder: Path,
    events: Events,
) -> TrainedModel:
    """Calibrate and evaluate the best model on the test files, or else the validation text, and write the card."""
    data, settings, task = prepared.data, prepared.recipe.data, get_task(prepared.recipe.task)
    best = load(folder, device=prepared.device)
    task.calibrate(best, data, events.stage)
    options = EvaluationOptions(
        settings.columns if has_tables(settings.test) else (),
        on_bad_line=settings.on_bad_line,
        bleu_tokenizer=prepared.recipe.training.bleu_tokenizer,
        start_progress=events.stage,
    )
    if settings.test:
        evaluated_on = f"{len(settings.test)} test file(s)"
        scores = evaluate_model(best, settings.test, options)
    else:
        evaluated_on = "the validation text"
        scores = task.evaluate_split(best, data.valid, options)
    scores |= task.baseline_scores(data)
    checksums = read_run_manifest(folder).files
    course, previous = TrainingCourse.of_run(prepared, progress), previous_run(folder, task.name, checksums)
    verdict = judge_run(prepared.recipe, data, course, scores, folder, previous)
    card = write_model_card(prepared, best, progress, scores, evaluated_on, verdict, comparison, folder)
    events.note(f"scores     {task.headline(scores)}, on {evaluated_on}")
    for line in verdict.lines():
        events.note(line)
    usage = [row.formatted() for row in comparison]
    events.note(f"took       {', '.join(f'{name} {actual}' for name, _, actual in usage)}")
    events.note(f"report     {card}")
    compared = [row._asdict() for row in comparison]
    events.emit(
        "done",
        folder=str(folder),
        card=str(card),
        date=datetime.now().isoformat(timespec="minutes"),
        headline=task.headline(scores),
        scores=scores,
        verdict=asdict(verdict),
        compared=compared,
        data={"examples": data.train.examples, "checksums": checksums},
    )
    return best
