"""Write a study's report: results.json, and a Markdown page computed from the measurements."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from heedful import __version__
from heedful.files import write_atomic
from heedful.lab.plotting import draw
from heedful.lab.study import Claim, Measure, value_text
from heedful.lab.study_results import Outcome, Results, estimate_text
from heedful.quantities import count, format_duration

RESULTS, REPORT = "results.json", "report.md"
SEEDS, QUICK_SEEDS = 5, 3
"""Seeds of a full and of a quick run."""


def write_report(results: Results, folder: Path, *, quick: bool, device: torch.device, reference: str = "") -> None:
    """Write results.json, the pictures and report.md of a study."""
    facts = run_facts(results, quick=quick, device=device, reference=reference)
    write_pages(results, folder, facts)


def write_pages(results: Results, folder: Path, facts: dict[str, Any]) -> None:
    """The same, with the facts of the run given."""
    outcomes = [prediction.decide(results) for prediction in results.study.predictions]
    write_atomic(folder / RESULTS, json.dumps(results_json(results, outcomes, facts), indent=1) + "\n")
    draw(results, folder / results.study.name)
    write_atomic(folder / REPORT, report_text(results, outcomes, facts))


def run_facts(results: Results, *, quick: bool, device: torch.device, reference: str = "") -> dict[str, Any]:
    """The command, versions and machine of a run. `reference`: the study's name or file."""
    study, seeds = results.study, len(results.seeds)
    cores = os.cpu_count() or 1
    return {
        "command": f"heedful lab run {reference or study.name}" + (" --quick" if quick else "") + f" --seeds {seeds}",
        "size": "quick" if quick else "full",
        "setup": study.setup_text,
        "budget": study.budget_of(quick=quick),
        "seeds": results.seeds,
        "versions": {
            "heedful": __version__,
            "torch": torch.__version__.partition("+")[0],
            "python": platform.python_version(),
        },
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cores}-core CPU",
        "load": round(os.getloadavg()[0] / cores, 1),
        "date": date.today().isoformat(),
        "seconds": round(results.seconds, 1),
    }


def results_json(results: Results, outcomes: list[Outcome], facts: dict[str, Any]) -> dict[str, Any]:
    """All measurements and outcomes as JSON values."""
    study = results.study
    return {
        "study": study.name,
        "question": study.question,
        "concept": study.concept,
        **facts,
        "predictions": [
            {"statement": prediction.statement, "held": outcome.held, "evidence": outcome.evidence}
            for prediction, outcome in zip(study.predictions, outcomes, strict=True)
        ],
        "summary": [
            {
                "variant": dict(variant.factors),
                **{
                    measure.key: asdict(results.estimate(measure.key, dict(variant.factors)))
                    for measure in shown_measures(results)
                },
            }
            for variant in study.variants
        ],
        "trials": [
            {
                "variant": dict(trial.variant.factors),
                "seed": trial.seed,
                "seconds": trial.seconds,
                "measured": trial.measured,
            }
            for trial in results.trials
        ],
    }


def report_text(results: Results, outcomes: list[Outcome], facts: dict[str, Any]) -> str:
    """The page: question, answer, set-up, table, picture, and possible results that would change the answer."""
    study = results.study
    size = size_text(facts)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    budget = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in facts["budget"].items())
    lines = [
        f"# {study.name}: {study.question}",
        "",
        *([f"*{size}*", ""] if size else []),
        "## Answer",
        "",
        " ".join(
            answer_sentence(prediction, outcome)
            for prediction, outcome in zip(study.predictions, outcomes, strict=True)
        ),
        "",
        f"![{study.question}]({study.name}.png)",
        "",
        "## Predicted before the first result",
        "",
        *[
            f"{number}. {prediction.statement[0].upper()}{prediction.statement[1:]}: **{outcome_text(outcome)}**."
            for number, (prediction, outcome) in enumerate(zip(study.predictions, outcomes, strict=True), 1)
        ],
        "",
        "## Set-up",
        "",
        facts["setup"],
        "",
        f"Budget: {budget}.",
        "",
        "## Measured",
        "",
        *table_lines(results),
        "",
        f"Means over {count(len(facts['seeds']), 'seed')} with 95% intervals (Student's t); a number without one is "
        "the same in every seed, to the digits shown. A prediction is decided only if an interval lies wholly on one "
        "side; differences are paired by seed, so that two intervals may overlap and their difference still be clear.",
        "",
        "## What would change this answer",
        "",
        study.would_change,
        "",
        *(load_warning(facts["load"]) if any(measure.timed for measure in study.measures) else []),
        f"`{facts['command']}`, seeds {', '.join(map(str, facts['seeds']))}, {facts['machine']}, {versions}, "
        f"{facts['date']}; {format_duration(facts['seconds'])} of computation. Every number is in `{RESULTS}`.",
    ]
    return "\n".join(lines) + "\n"


def size_text(facts: dict[str, Any]) -> str:
    """A note if the run is smaller than a full one; empty for a full run."""
    if facts["size"] == "quick":
        return "Quick run: small models, short training, few seeds; treat its answer as a hint."
    seeds = len(facts["seeds"])
    return f"Full training with {count(seeds, 'seed')} instead of {SEEDS}." if seeds < SEEDS else ""


def load_warning(load: float) -> list[str]:
    """A warning if the machine was overloaded: `load` is the load average per core."""
    if load < 1.7:
        return []
    return [f"The machine was busy with other programs (load average {load} a core): the times are unreliable.", ""]


def answer_sentence(prediction: Claim, outcome: Outcome) -> str:
    """One sentence of the answer, worded by whether the intervals decide the prediction."""
    if outcome.held:
        return f"As predicted, {prediction.statement}; {outcome.evidence}."
    if outcome.held is False:
        return f"The prediction that {prediction.statement} did not hold; {outcome.evidence}."
    return f"This run does not decide whether {prediction.statement}; {outcome.evidence}."


def outcome_text(outcome: Outcome) -> str:
    """The outcome of a prediction in one to three words."""
    return {True: "held", False: "did not hold", None: "not decided"}[outcome.held]


def table_lines(results: Results) -> list[str]:
    """A Markdown table: variants in rows, measures in columns."""
    heads, rows = table_cells(results)
    factors = len(results.study.factors)
    marks = f"|{' --- |' * factors}{' ---: |' * (len(heads) - factors)}"
    return [f"| {' | '.join(heads)} |", marks, *(f"| {' | '.join(row)} |" for row in rows)]


def table_cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table: factors, then means with their intervals."""
    study, measures = results.study, shown_measures(results)
    heads = [*(name.replace("_", " ") for name in study.factors), *(measure.title for measure in measures)]
    rows = []
    for variant in study.variants:
        estimates = ((measure, results.estimate(measure.key, dict(variant.factors))) for measure in measures)
        rows.append(
            [*(value_text(value) for _, value in variant.factors), *(estimate_text(*pair) for pair in estimates)]
        )
    return heads, rows


def shown_measures(results: Results) -> list[Measure]:
    """The columns of the table: without optional measures that no trial has."""
    return [
        measure
        for measure in results.study.measures
        if not measure.optional or any(measure.key in trial.measured for trial in results.trials)
    ]
