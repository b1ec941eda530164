"""Runs are listed from their recipes and logs, damaged ones left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heedful.training.run_catalog import list_runs, previous_run

CHECKSUMS = {"train": ["1f"], "valid": [], "test": []}


def write_run(folder: Path, date: str = "", bleu: float = 20.0, checksums: Any = CHECKSUMS) -> None:
    folder.mkdir()
    (folder / "recipe.toml").write_text(
        'task = "translate"\n[data]\ntrain = ["/home/me/a.en", "/home/me/a.de"]\n[training]\nsteps = 300\n'
    )
    events: list[dict[str, Any]] = [
        {"kind": "ready", "parameters": {"embedding": 100, "encoder": 50}},
        {"kind": "step", "step": 120, "loss": 3.0},
    ]
    if date:
        done = {"headline": f"BLEU {bleu}", "scores": {"bleu": bleu}, "verdict": {"is_useful": bleu > 1}}
        events.append({"kind": "done", "date": date, **done, "data": {"examples": 9, "checksums": checksums}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "b", "2026-01-02T10:00")
    write_run(tmp_path / "a", "2026-01-03T10:00", bleu=0.1)
    write_run(tmp_path / "c", "2026-01-01T10:00", checksums={**CHECKSUMS, "train": ["2e"]})
    write_run(tmp_path / "d")
    write_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "recipe.toml").write_text("task = ")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_runs_are_listed_by_date_with_their_state(folder: Path) -> None:
    runs = {Path(run.folder).name: run for run in list_runs(folder)}
    assert list(runs) == ["c", "b", "a", "d"]
    assert (runs["b"].result, runs["b"].data, runs["b"].parameters) == ("BLEU 20.0", ("a.en", "a.de"), 150)
    assert (runs["d"].state, runs["d"].result) == ("unfinished", "step 120 of 300")
    assert [run.is_useful for run in runs.values()] == [True, True, False, None]


def test_the_previous_run_has_the_same_task_and_data(folder: Path) -> None:
    before = previous_run(folder / "new", "translate", CHECKSUMS)
    assert before is not None
    assert Path(before.folder).name == "a"
    again = previous_run(folder / "a", "translate", CHECKSUMS)
    assert again is not None
    assert Path(again.folder).name == "b", "not itself"
    assert previous_run(folder / "new", "generate", CHECKSUMS) is None
    assert previous_run(folder / "new", "translate", {}) is None
    assert previous_run(folder / "missing" / "new", "translate", CHECKSUMS) is None


def test_the_command_prints_a_table_or_json(folder: Path) -> None:
    from heedful.cli.app import app
    from heedful.cli.commands import GROUPS  # registers the commands

    assert GROUPS
    printed = CliRunner().invoke(app, ["runs", str(folder)]).output
    assert "not usable: BLEU 0.1" in printed
    assert "a.en, a.de  (150 parameters, 9 pairs)" in printed
    lines = CliRunner().invoke(app, ["runs", str(folder), "--json"]).output.splitlines()
    listed = [json.loads(line) for line in lines]
    assert [run["scores"].get("bleu") for run in listed] == [20.0, 20.0, 0.1, None]


def test_listing_runs_does_not_import_torch() -> None:
    code = "import sys, heedful.training.run_catalog; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
