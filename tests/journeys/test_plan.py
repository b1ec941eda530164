"""`heedful plan`: forecasts agree with measurements."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from heedful.data.dates_corpus import write_dates

CPU_MEMORY = 0.15
"""Relative error allowed for peak memory."""


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Source and target to train on, then a few to validate with."""
    folder = write_dates(tmp_path_factory.mktemp("dates"), train=5000)
    for side in ("source", "target"):
        few = (folder / f"valid.{side}").read_text(encoding="utf-8").splitlines(keepends=True)[:20]
        (folder / f"few.{side}").write_text("".join(few), encoding="utf-8")
    return [str(folder / f"{part}.{side}") for part in ("train", "few") for side in ("source", "target")]


def test_a_plan_is_printed_as_json_and_writes_no_files(heedful_command: Any, dates: list[str], tmp_path: Path) -> None:
    done = heedful_command("plan", "translate", *dates[:2], "--time", "1m", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    forecast = json.loads(done.stdout)
    assert forecast["seconds"] < 60
    assert forecast["memory"]["weights"] >= 4 * sum(forecast["parameters"].values())
    assert forecast["timing"] == "measured"
    assert not list(tmp_path.iterdir())


def test_scores_of_many_test_texts_are_forecast_for_a_short_run_too(
    heedful_command: Any, dates: list[str], tmp_path: Path
) -> None:
    many = [tmp_path / side for side in ("many.source", "many.target")]
    for few, file in zip(dates[2:], many, strict=True):
        file.write_text(Path(few).read_text(encoding="utf-8") * 1000, encoding="utf-8")
    small = [word for key in ("width=16", "heads=2", "layers=1") for word in ("--set", f"model.{key}")]
    held_out = [word for file in dates[2:] for word in ("--valid", file)]
    held_out += [word for file in many for word in ("--test", str(file))]
    done = heedful_command("plan", "translate", *dates[:2], *held_out, *small, "--steps", "5", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    phases = json.loads(done.stdout)["phases"]
    assert phases["test scores"] > 3, "20,000 texts"
    assert phases["calibration"] < phases["test scores"] / 3


@pytest.mark.parametrize(
    ("task", "kind", "settings"),
    [
        pytest.param(
            "translate", "transformer", ["model.width=256", "model.layers=2", "model.heads=8"], marks=pytest.mark.slow
        ),
        ("generate", "transformer", ["model.width=128", "model.heads=8"]),
        pytest.param("translate", "recurrent", ["model.width=256"], marks=pytest.mark.slow),
    ],
    ids=["pairs", "running text", "recurrent"],
)
def test_peak_memory_agrees_with_the_forecast(
    heedful_command: Any, task: str, kind: str, settings: list[str], dates: list[str], tmp_path: Path
) -> None:
    valid = dates[2:] if task == "translate" else dates[2:3]
    files = [
        *(dates[:2] if task == "translate" else dates[:1]),
        *(word for file in valid for word in ("--valid", file)),
    ]
    words = [word for setting in [*settings, "training.batch_tokens=4096"] for word in ("--set", setting)]
    done = heedful_command("train", task, *files, "--model", kind, *words, "--steps", "6", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert abs(memory_ratio(tmp_path / "run") - 1) < CPU_MEMORY
    assert "Forecast and measurement" in (tmp_path / "run" / "card.md").read_text()


@pytest.mark.slow
def test_memory_does_not_grow_with_new_batch_shapes(heedful_command: Any, tmp_path: Path) -> None:
    """Passages of any length: hardly two batches are alike."""
    draw = random.Random(0)
    names = [f"name{number}" for number in range(300)]
    rows = []
    for _ in range(1500):
        names_in_passage = draw.sample(names, draw.randint(5, 110))
        rows.append(
            {
                "question": f"Who stands after {names_in_passage[0]}?",
                "passage": " ".join(names_in_passage),
                "answer": names_in_passage[1],
            }
        )
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = heedful_command("train", "answer", "asked.jsonl", "--steps", "200", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert abs(memory_ratio(tmp_path / "run") - 1) < CPU_MEMORY


def memory_ratio(run: Path) -> float:
    """Peak memory, fact to forecast."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (done,) = (event for event in events if event["kind"] == "done")
    return float({row["name"]: row for row in done["compared"]}["peak memory"]["ratio"])


def test_a_model_too_large_for_the_machine_is_planned_but_not_tried(
    heedful_command: Any, dates: list[str], tmp_path: Path
) -> None:
    large = ["model.width=8192", "model.heads=64", "model.layers=12"]
    words = [word for setting in large for word in ("--set", setting)]
    done = heedful_command("plan", "translate", *dates[:2], *words, "--steps", "100", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "estimated" in done.stdout
    assert "will not fit" in done.stdout
    tried = heedful_command("train", "translate", *dates[:2], *words, "--steps", "100", cwd=tmp_path)
    assert tried.returncode == 1
    assert "training.batch_tokens" in tried.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_misspelled_setting_is_one_line(heedful_command: Any, dates: list[str], tmp_path: Path) -> None:
    done = heedful_command("plan", "translate", *dates[:2], "--set", "model.widht=64", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'model.width'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
