"""Measure which attribution method is the most faithful for a new model, in seconds, for its card."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from heedful.data.dataset import Split
from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.attribution.explain_passes import faithfulness_curves, outputs_or_none
from heedful.inspection.attribution.explained_output import ExplainedOutput, output_log_probabilities
from heedful.inspection.attribution.faithfulness import CurveSettings, FaithfulnessTable, OutputCurves, summarize
from heedful.inspection.attribution.gradients import STEPS
from heedful.inspection.attribution.methods import available_methods
from heedful.inspection.attribution.perturbation import hide_words, perturbation_name
from heedful.inspection.text_pass import TextPass
from heedful.quantities import count
from heedful.training.tasks.task import Task

SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 2.0
LARGEST_SHARE = 0.03
"""Maximum share of the run's time so far: runs of less than half a minute do not measure explanations."""
MOST_TEXTS, FEWEST_TEXTS = 24, 5
COARSE = CurveSettings(random_orders=3, points=5)
PROBES = 8
"""Passes that are timed to estimate the time of a text."""


def measure_explanations(
    task: Task, best: TrainedModel, split: Split, seconds_so_far: float, limit: float | None
) -> FaithfulnessTable | None:
    """Measure the methods on one output of each of a few validation texts; None if there is no time for enough.

    `limit`: the time limit of the run.
    """
    seconds = allowed_seconds(seconds_so_far, limit)
    if seconds < SHORTEST_SECONDS:
        return None
    end = time.monotonic() + seconds
    curves: list[list[OutputCurves]] = []
    for text_pass in _passes(best, task.explained_examples(best, split, MOST_TEXTS)):
        outputs = [output for output in outputs_or_none(text_pass) if len(output.words) > 1]
        if not outputs:
            continue
        if time.monotonic() + _expected_seconds(best, outputs[len(outputs) // 2]) > end:
            break
        curves += faithfulness_curves(best, [text_pass], outputs_per_text=1, settings=COARSE, seed=len(curves))
    return summarize(curves, perturbation_name(best)) if len(curves) >= FEWEST_TEXTS else None


def allowed_seconds(seconds_so_far: float, limit: float | None) -> float:
    """Seconds for measuring explanations; past the time limit, still a hundredth of it."""
    left = LONGEST_SECONDS if limit is None else max(limit - seconds_so_far - 1.0, 0.01 * limit)
    return min(LONGEST_SECONDS, LARGEST_SHARE * seconds_so_far, left)


def _passes(best: TrainedModel, examples: Sequence[str | tuple[str, str]]) -> Iterator[TextPass]:
    for example in examples:
        with suppress(UsageError):  # a text that the model cannot read at once
            yield from best.scored_passes(example)


def _expected_seconds(best: TrainedModel, output: ExplainedOutput) -> float:
    """The expected seconds of measuring an output, from a few of its passes."""
    probes = [hide_words(best, output, [index]) for index in range(min(PROBES, len(output.words)))]
    start = time.monotonic()
    output_log_probabilities(best, probes)
    seconds = (time.monotonic() - start) / len(probes)
    orders = len(available_methods(best)) + COARSE.random_orders + 1
    return seconds * (2 * COARSE.points * orders + 2 * len(output.words) + 3 * STEPS)


def faithfulness_section(best: TrainedModel, name: str) -> str:
    """A section of the model card: the methods with their faithfulness, or why there are none."""
    if best.task in ("embed", "encode"):
        return "This model makes vectors, not predictions: there is no output to explain."
    table, command = best.measured_faithfulness, f'`heedful explain {name} "…" --validation FILE`'
    if table is None:
        return f"Not measured when the model was trained: there was no time for it. {command} measures it."
    verdict = "No method is measurably better than a random order"
    if table.best:
        verdict = f"The most faithful method for this model is **{table.best.method}**"
    rows = "\n".join(f"| {score.method} | {score} |" for score in table.methods)
    texts = f"{count(table.outputs, 'output')} of {count(table.texts, 'validation text')}"
    return f"""{verdict}, measured on {texts}, in which hidden words are {table.perturbation}. The number is the area \
between deletion and insertion curves and those of random orders; 0 is chance. {command} measures it on more text.

| method | faithfulness (95% interval) |
| --- | --- |
{rows}"""
