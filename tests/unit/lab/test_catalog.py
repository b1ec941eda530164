"""The code of the guide to studies is complete and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heedful.lab.catalog import load_study
from heedful.lab.runner import run_study

GUIDE = Path(__file__).parents[3] / "docs" / "lab" / "adding-a-study.md"


def blocks() -> list[str]:
    """The Python code blocks of the guide."""
    return list(re.findall(r"```py\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))


ROTATION = """
from heedful.lab import Claim, Dots, Lines, Measure, Study, fit, grid

def measure(trial):
    task = RotateTask(by=trial.number("by"))
    fitted = fit(task, trial, steps=trial.budget["steps"], model={"width": 16, "feed_forward": 16}, warmup=1)
    return {"right": task.exact_match(fitted.model), "losses": fitted.losses}

STUDY = Study(
    name="rotation", question="Does the distance matter?", concept="P3", setup="Rotation.", variants=grid(by=(1, 2)),
    measure=measure, measures=(Measure("right", "right", "percent"),), curves=(Measure("losses", "loss"),),
    predictions=(Claim("it does not", lambda r: r.is_close("right", {"by": 1}, {"by": 2}, within=0.1)),) * 3,
    panels=(Dots("right"), Lines("losses", x_title="step")), would_change="More steps.", budget={"steps": 2},
)
"""


def test_the_task_of_the_guide_is_trained_and_scored(tmp_path: Path) -> None:
    """The task also works in a user's study with a curve."""
    file = tmp_path / "rotation.py"
    file.write_text(blocks()[1] + ROTATION, encoding="utf-8")
    load_study.cache_clear()
    results = run_study(str(file), tmp_path, seeds=1, processes=1)
    assert len(results.trials) == 2
    assert "| 2 | 0% |" in (tmp_path / "rotation" / "report.md").read_text(encoding="utf-8")


def test_the_study_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEEDFUL_DATA", raising=False)
    code = blocks()[0]
    assert len(code.splitlines()) <= 70
    file = tmp_path / "tying.py"
    file.write_text(code.replace('quick={"steps": 100}', 'quick={"steps": 1}'), encoding="utf-8")
    load_study.cache_clear()
    results = run_study(str(file), tmp_path, quick=True, seeds=1, processes=1)
    assert len(results.trials) == 4
    assert (tmp_path / "tying" / "report.md").exists()
