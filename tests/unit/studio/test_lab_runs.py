"""Studies in the studio: the list, a run that is stopped, and the report of stored results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from heedful.errors import UsageError
from heedful.lab.catalog import all_studies
from heedful.studio.lab_runs import LabRuns
from heedful.studio.studio_app import create_studio_app
from heedful.studio.workspace import Workspace

LOCAL = "http://127.0.0.1"


def store_results(folder: Path) -> None:
    """Results of the study of windows as a run stores them."""
    study = all_studies()["windows"]
    trials = [
        {"variant": dict(variant.factors), "seed": seed, "seconds": 0.5, "measured": {"first": 1.0, "text": 2.0}}
        for variant in study.variants
        for seed in (1, 2)
    ]
    predictions = [{"statement": each.statement, "held": True, "evidence": "seen"} for each in study.predictions]
    content = {
        "study": "windows", "question": study.question, "command": "heedful lab run windows", "size": "full",
        "budget": {}, "seeds": [1, 2], "versions": {}, "machine": "a CPU", "load": 0.0, "date": "2020-02-02",
        "setup": "A window.", "seconds": 1.0, "predictions": predictions, "trials": trials,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "windows.png").write_bytes(b"picture")


def state_of(runs: LabRuns, name: str) -> dict[str, Any]:
    return next(each for each in runs.all_studies() if each["name"] == name)


def test_every_study_is_listed_with_its_predictions(tmp_path: Path) -> None:
    store_results(tmp_path / "lab" / "windows")
    runs = LabRuns(tmp_path)
    assert [each["name"] for each in runs.all_studies()] == list(all_studies())
    assert state_of(runs, "order")["state"] == "none"
    assert [each["outcome"] for each in state_of(runs, "windows")["predictions"]] == ["held"] * 3


def test_a_report_has_answer_table_and_picture(tmp_path: Path) -> None:
    store_results(tmp_path / "lab" / "windows")
    report = LabRuns(tmp_path).report("windows")
    assert report["answer"][0].startswith("As predicted, a network over concatenated vectors knows")
    assert report["heads"] == ["vectors", "which first", "next character (nats)"]
    assert report["rows"][0] == ["concatenated", "100%", "2.00"]
    assert report["picture"] == "cGljdHVyZQ=="


@pytest.mark.slow  # the browser tests do it too
def test_a_study_is_started_and_stopped_with_its_trials_kept(tmp_path: Path) -> None:
    runs = LabRuns(tmp_path)
    runs.start("cost", quick=True)
    with pytest.raises(UsageError, match="cost is running"):
        runs.start("cost", quick=True)
    deadline = time.monotonic() + 60
    while not state_of(runs, "cost")["trials"] and time.monotonic() < deadline:
        time.sleep(0.1)
    stored = state_of(runs, "cost")["trials"]
    assert stored >= 1
    runs.stop("cost")
    while state_of(runs, "cost")["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    after = state_of(runs, "cost")
    assert (after["state"], after["trials"] >= stored) == ("none", True)
    with pytest.raises(UsageError, match="was not started here, or has ended"):
        runs.stop("cost")


@pytest.mark.parametrize("name", ["nothing", "../windows", "study.py"])
def test_only_studies_of_the_package_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="unknown study"):
        LabRuns(tmp_path).start(name, quick=True)


def test_the_routes_list_report_and_refuse(tmp_path: Path) -> None:
    store_results(tmp_path / "lab" / "windows")
    with TestClient(create_studio_app({}, workspace=Workspace(tmp_path)), base_url=LOCAL) as client:
        assert len(client.get("/api/v1/studio/studies").json()["studies"]) == len(all_studies())
        assert client.get("/api/v1/studio/studies/windows").json()["size"] == "full"
        missing = client.get("/api/v1/studio/studies/order")
        assert missing.status_code == 422
        assert "run it first" in missing.text
        assert client.post("/api/v1/studio/studies/nothing/run", json={}).status_code == 422
    with TestClient(create_studio_app({}), base_url=LOCAL) as client:
        assert client.get("/api/v1/studio/studies").status_code == 403
