"""heedful plan: what is forecast comes true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.data.dates import write_dates

CPU_MEMORY = 0.15
"""How far peak memory may be from its forecast."""


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Source and target to train on, then a few to validate with."""
    folder = write_dates(tmp_path_factory.mktemp("dates"))
    for side in ("source", "target"):
        few = (folder / f"valid.{side}").read_text(encoding="utf-8").splitlines(keepends=True)[:20]
        (folder / f"few.{side}").write_text("".join(few), encoding="utf-8")
    return [str(folder / f"{part}.{side}") for part in ("train", "few") for side in ("source", "target")]


def heedful(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from heedful.cli.app import main; main()", *words]
    settings = os.environ | {"HEEDFUL_CACHE": str(folder.parent / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=settings, check=False)


def test_a_plan_is_json_for_programs_and_leaves_nothing_behind(dates: list[str], tmp_path: Path) -> None:
    found = heedful("plan", "translate", *dates[:2], "--time", "1m", "--json", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    forecast = json.loads(found.stdout)
    assert forecast["seconds"] < 60
    assert forecast["memory"]["weights"] >= 4 * sum(forecast["parameters"].values())
    assert forecast["timing"] == "measured"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("task", "kind", "settings"),
    [
        ("translate", "transformer", ["model.width=256", "model.layers=2", "model.heads=8"]),
        ("generate", "transformer", ["model.width=128", "model.heads=8"]),
        ("translate", "recurrent", ["model.width=256"]),
    ],
    ids=["pairs", "running text", "recurrent"],
)
def test_memory_is_what_was_forecast(
    task: str, kind: str, settings: list[str], dates: list[str], tmp_path: Path
) -> None:
    files = [*dates[:2], "--valid", *dates[2:]] if task == "translate" else [dates[0], "--valid", dates[2]]
    words = [word for setting in [*settings, "training.batch_tokens=4096"] for word in ("--set", setting)]
    found = heedful("train", task, *files, "--model", kind, *words, "--steps", "6", "--out", "run", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (done,) = (event for event in events if event["kind"] == "done")
    rows = {row["name"]: row for row in done["compared"]}
    assert abs(rows["peak memory"]["ratio"] - 1) < CPU_MEMORY
    assert "Forecast against fact" in (tmp_path / "run" / "card.md").read_text()


def test_a_model_too_large_for_the_machine_is_planned_but_not_tried(dates: list[str], tmp_path: Path) -> None:
    large = ["model.width=8192", "model.heads=64", "model.layers=24"]
    words = [word for setting in large for word in ("--set", setting)]
    found = heedful("plan", "translate", *dates[:2], *words, "--steps", "100", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "estimated" in found.stdout
    assert "will not fit" in found.stdout
    tried = heedful("train", "translate", *dates[:2], *words, "--steps", "100", folder=tmp_path)
    assert tried.returncode == 1
    assert "training.batch_tokens" in tried.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_wrong_word_is_one_line(dates: list[str], tmp_path: Path) -> None:
    found = heedful("plan", "translate", *dates[:2], "--set", "model.widht=64", folder=tmp_path)
    assert found.returncode == 2
    assert "did you mean 'width'" in found.stderr
    assert len(found.stderr.splitlines()) == 1
