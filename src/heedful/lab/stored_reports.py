"""Rewrite reports from stored results of studies, and write the index page of a folder of reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heedful.errors import UsageError
from heedful.files import write_atomic
from heedful.lab.catalog import all_studies
from heedful.lab.report import REPORT, RESULTS, outcome_text, write_pages
from heedful.lab.study import Study, Variant
from heedful.lab.study_results import Outcome, Results, TrialResult
from heedful.quantities import count

FACTS = ("command", "size", "setup", "budget", "seeds", "versions", "machine", "load", "date", "seconds")
READING_ORDER = {
    "Start here": ("windows", "order", "teaching"),
    "Inside a block": ("scale", "heads", "averaging", "skips"),
    "Why attention": ("bottleneck", "form", "approximation"),
    "Long texts": ("cost", "beyond"),
}
"""The reading order by title: the first reports, then the others."""
INTRODUCTION = (
    "The lecture notes end in questions. Each study answers one by a controlled experiment that anyone can repeat:",
    "variants that differ in one thing, predictions written down before the first result, and a report computed",
    "from the measurements, whatever they are. `heedful lab list` lists the studies, `heedful lab run NAME` runs",
    "one, `heedful lab report` writes this page and the reports anew from stored results.",
)
READING = (
    "A report begins with its answer; the picture says the same; the table has every mean with its 95% interval.",
    "*Held* and *did not hold* are decided by intervals; *not decided* means that this run is too small to say.",
    "Before reading a report, read its question and its predictions, and decide what you would have predicted.",
)
GUIDES = {
    "adding-a-study.md": "write a study of your own",
    "checking-a-model.md": "check a model",
    "../worked-numbers.md": "the worked numbers and errata of the notes",
}


def read_results_file(file: Path) -> dict[str, Any]:
    """The content of results.json; UsageError for a damaged one."""
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        missing = [key for key in ("study", "question", "predictions", "trials", *FACTS) if key not in stored]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); delete it and run its study again") from error
    if missing:
        raise UsageError(f"{file} has no {missing[0]!r}; delete it and run its study again")
    return stored


def write_reports(folder: Path) -> Path:
    """Rewrite every report of the folder from its results, and README.md.

    A report whose study has changed since is left unchanged: a prediction must precede its result.
    """
    for file in sorted(folder.glob(f"*/{RESULTS}")):
        stored = read_results_file(file)
        if (study := all_studies().get(stored["study"])) and is_of(study, stored):
            write_pages(stored_results(study, stored), file.parent, {key: stored[key] for key in FACTS})
    return write_index(folder)


def is_of(study: Study, stored: dict[str, Any]) -> bool:
    """Whether stored results match the current study: same predictions, variants and measures."""
    expected = {measure.key for measure in (*study.measures, *study.curves) if not measure.optional}
    return (
        stored["question"] == study.question
        and [row["statement"] for row in stored["predictions"]] == [row.statement for row in study.predictions]
        and all(Variant(tuple(trial["variant"].items())) in study.variants for trial in stored["trials"])
        and all(expected <= trial["measured"].keys() for trial in stored["trials"])
        and len(stored["trials"]) == len(study.variants) * len(stored["seeds"])
    )


def stored_results(study: Study, stored: dict[str, Any]) -> Results:
    """The trials in results.json."""
    return Results(
        study,
        tuple(
            TrialResult(Variant(tuple(trial["variant"].items())), trial["seed"], trial["measured"], trial["seconds"])
            for trial in stored["trials"]
        ),
    )


def write_index(folder: Path) -> Path:
    """Write README.md: every study, its question, the outcomes of its predictions, and its report in this folder."""
    rows = {name: f"| {name} | {study.question} | no report yet | |" for name, study in all_studies().items()}
    for file in sorted(folder.glob(f"*/{RESULTS}")):
        stored = read_results_file(file)
        outcomes = " · ".join(outcome_text(Outcome(prediction["held"], "")) for prediction in stored["predictions"])
        run = f"{stored['size']}, {count(len(stored['seeds']), 'seed')}, {stored['machine']}, {stored['date']}"
        link = f"[{stored['study']}]({file.parent.name}/{REPORT})"
        rows[stored["study"]] = f"| {link} | {stored['question']} | {outcomes} | {run} |"
    guides = [f"[{title}]({name})" for name, title in GUIDES.items() if (folder / name).is_file()]
    first, *rest = (f"{title}: {', '.join(names)}" for title, names in READING_ORDER.items())
    lines = [
        "# The lab", "", *INTRODUCTION, "", *([f"More: {', '.join(guides)}.", ""] if guides else []),
        "## What to read first", "", f"**{first}.** Then: {'; '.join(line[0].lower() + line[1:] for line in rest)}.",
        *READING, "", "## Studies", "",
        "| study | question | its three predictions | run |", "| --- | --- | --- | --- |", *rows.values(),
    ]  # fmt: skip
    path = folder / "README.md"
    write_atomic(path, "\n".join(lines) + "\n")
    return path
