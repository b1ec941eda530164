"""The end of a run: evaluate the best model and write its model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from heedful.data.corpus_readers import has_tables
from heedful.data.dataset import PreparedData
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load
from heedful.model_folder import write_optional_files
from heedful.quantities import count
from heedful.training.checkpoint.run_manifest import read_run_manifest
from heedful.training.forecast.final_costs import MORE, REPORT_SECONDS, LinearCost
from heedful.training.forecast.forecast import ForecastComparison, TrainingUsage, compare_forecast
from heedful.training.reporting.events import Events
from heedful.training.reporting.faithfulness_section import measure_explanations
from heedful.training.reporting.model_card import write_model_card
from heedful.training.reporting.verdict import TrainingCourse, Verdict, judge_run
from heedful.training.run_catalog import previous_run
from heedful.training.run_progress import RunProgress
from heedful.training.setup import PreparedRun
from heedful.training.tasks import EvaluationOptions, evaluate_model, get_task
from heedful.training.tasks.task import Task
from heedful.training.time_limit import FEWEST_TEXTS


def evaluate_and_report(
    prepared: PreparedRun, progress: RunProgress, usage: TrainingUsage, folder: Path, events: Events
) -> TrainedModel:
    """Calibrate and evaluate the best model on the test files, or else the validation text, and write the card."""
    data, recipe, task = prepared.data, prepared.recipe, get_task(prepared.recipe.task)
    write_optional_files(folder, prepared.files())  # an interrupted calibration may have left others
    best = load(folder, device=prepared.device)
    task.calibrate(best, data, events.stage, recipe.training.calibration_texts)
    best.save_settings()
    events.end_phase("calibration")
    final = score_best_model(prepared, best, task, events)
    scores = final.scores
    phase = next((name for name in prepared.forecast.final_phases if name.endswith("scores")), "scores")
    events.end_phase(phase)
    checksums = read_run_manifest(folder).files
    final_seconds = events.phases["calibration"] + events.phases[phase] / final.share + REPORT_SECONDS
    course = TrainingCourse.of_run(prepared, progress, final_seconds)
    previous = previous_run(folder, task.name, checksums)
    verdict = judge_run(recipe, data, course, scores, folder, previous)

    def comparison() -> list[ForecastComparison]:
        return compare_forecast(prepared.forecast, usage, events.seconds, events.phases)

    limit = prepared.forecast.limit
    best.measured_faithfulness = measure_explanations(task, best, data.valid, events.seconds, limit)
    best.save_settings()
    samples = task.samples(best, data.valid)
    card = write_model_card(prepared, best, progress, scores, samples, final.evaluated_on, verdict, comparison, folder)
    events.end_phase("report")
    compared = comparison()
    is_scored = task.main_score is not None or recipe.data.test
    headline = task.headline(scores) + (f", on {final.evaluated_on}" if is_scored else "")
    report_lines(events, headline, verdict, compared, card)
    events.emit(
        "done",
        folder=str(folder),
        card=str(card),
        date=datetime.now().isoformat(timespec="minutes"),
        headline=task.headline(scores),
        scores=scores,
        verdict=asdict(verdict),
        compared=[row._asdict() for row in compared],
        data={"examples": data.train.examples, "checksums": checksums},
        samples=samples,
    )
    return best


@dataclass(frozen=True)
class FinalScores:
    """The scores of a run's best model, the text they are computed on, and the share of it that there was time for."""

    scores: dict[str, Any]
    evaluated_on: str
    share: float = 1.0


def score_best_model(prepared: PreparedRun, best: TrainedModel, task: Task, events: Events) -> FinalScores:
    """Score a model on the test files, or else on the validation text, and report what makes the scores doubtful."""
    recipe = prepared.recipe
    options = EvaluationOptions(
        recipe.data.columns if has_tables(recipe.data.test) else (),
        on_bad_line=recipe.data.on_bad_line,
        bleu_tokenizer=recipe.training.bleu_tokenizer,
        start_progress=events.stage,
    )
    share = 1.0
    if recipe.data.test:
        evaluated_on = count(len(recipe.data.test), "test file")
        scores = evaluate_model(best, recipe.data.test, options)
    else:
        scores, share = score_validation_text(task, best, prepared.data, options, prepared.forecast.limit, events)
        evaluated_on = "the validation text"
        if share < 1:
            evaluated_on = f"{share:.0%} of the validation text, evenly spaced: as much as --time left time for"
    for warning in scores.get("warnings", ()):
        events.note(f"warning    {warning}")
    return FinalScores(scores | task.baseline_scores(prepared.data), evaluated_on, share)


def report_lines(
    events: Events, headline: str, verdict: Verdict, compared: Sequence[ForecastComparison], card: Path
) -> None:
    """Print the end of a run: scores, verdict, forecast beside measurement, and where the card is."""
    events.note(f"scores     {headline}")
    for line in verdict.lines():
        events.note(line)
    usage = [f"{name} {actual}" for name, _, actual in (row.formatted() for row in compared)]
    events.note(f"took       {', '.join(usage)}")
    events.note(f"report     {card}")


def score_validation_text(
    task: Task, best: TrainedModel, data: PreparedData, options: EvaluationOptions, limit: float | None, events: Events
) -> tuple[dict[str, Any], float]:
    """Score a model on the validation text, or on the share of it that the time limit leaves time for."""
    total = data.valid.scored_texts
    if limit is None or total <= FEWEST_TEXTS:
        return task.evaluate_split(best, data.valid, options), 1.0

    def score(texts: int) -> dict[str, Any]:
        return task.evaluate_split(best, data.valid, replace(options, share=texts / total))

    cost = LinearCost.measure(score, min(total, MORE))
    left = limit - REPORT_SECONDS - events.seconds
    texts = cost.texts_within(left, least=FEWEST_TEXTS, most=total)
    return score(texts), texts / total
