"""Studies of the lab in the studio's folder: child processes of `heedful lab run`, their progress and their reports."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from heedful.errors import UsageError, nearest
from heedful.lab.catalog import all_studies
from heedful.lab.report import RESULTS, answer_sentence, outcome_text, table_cells
from heedful.lab.runner import TRIALS
from heedful.lab.stored_reports import is_of, read_results_file, stored_results
from heedful.lab.study import Claim, Study
from heedful.lab.study_results import Outcome

FOLDER, OUTPUT = "lab", "output.log"
COMMAND = (sys.executable, "-m", "heedful", "lab", "run")


class LabRuns:
    """Starts, stops and shows studies; a stopped study continues where it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def all_studies(self) -> list[dict[str, Any]]:
        """Every study: its question, the outcomes of its predictions in this folder, and whether it is running."""
        return [self._summary(study) for study in all_studies().values()]

    def start(self, name: str, *, quick: bool) -> None:
        """Start a study, or the rest of an interrupted one."""
        study = find_study(name)
        if self._is_running(name):
            raise UsageError(f"{name} is running")
        folder = self.folder / study.name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / OUTPUT).open("wb") as output:
            self._children[name] = subprocess.Popen(
                [*COMMAND, study.name, "--out", str(self.folder), *(["--quick"] if quick else [])],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def stop(self, name: str) -> None:
        """Stop a study that was started here; its finished trials are kept."""
        if not self._is_running(name):
            raise UsageError(f"{name} was not started here, or has ended")
        self._children[name].send_signal(signal.SIGINT)

    def report(self, name: str) -> dict[str, Any]:
        """A study's answer, predictions, table and picture, from its stored results."""
        study = find_study(name)
        stored = self._stored(study)
        if stored is None:
            raise UsageError(f"{name} has no results here yet; run it first")
        results = stored_results(study, stored)
        heads, rows = table_cells(results)
        picture = self.folder / name / f"{name}.png"
        return {
            **self._summary(study),
            "setup": stored["setup"],
            "answer": [_sentence(prediction) for prediction in stored["predictions"]],
            "heads": heads,
            "rows": rows,
            "would_change": study.would_change,
            "facts": f"{stored['command']}, {stored['machine']}, {stored['date']}",
            "picture": base64.b64encode(picture.read_bytes()).decode() if picture.is_file() else None,
        }

    def _summary(self, study: Study) -> dict[str, Any]:
        stored, running = self._stored(study), self._is_running(study.name)
        child = self._children.get(study.name)
        failed = child is not None and not running and child.returncode not in (0, 130, -signal.SIGINT)
        return {
            "name": study.name,
            "question": study.question,
            "concept": study.concept,
            "variants": len(study.variants),
            "state": "running" if running else "failed" if failed else "none" if stored is None else "done",
            "message": self._last_line(study.name) if failed else None,
            "trials": len(list((self.folder / study.name / TRIALS).glob("*.json"))),
            "size": None if stored is None else stored["size"],
            "predictions": [
                {
                    "statement": prediction.statement,
                    "outcome": None
                    if stored is None
                    else outcome_text(Outcome(stored["predictions"][number]["held"], "")),
                }
                for number, prediction in enumerate(study.predictions)
            ],
        }

    def _stored(self, study: Study) -> dict[str, Any] | None:
        """The results of a study in the folder; None if there are none of this version of it."""
        file = self.folder / study.name / RESULTS
        if not file.is_file():
            return None
        stored = read_results_file(file)
        return stored if is_of(study, stored) else None

    def _is_running(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def _last_line(self, name: str) -> str:
        lines = (self.folder / name / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"


def find_study(name: str) -> Study:
    """A study of the package by its name; no file of a user is ever opened."""
    known = all_studies()
    if name not in known:
        raise UsageError(f"unknown study '{name}'; {nearest(name, known)}")
    return known[name]


def _sentence(prediction: dict[str, Any]) -> str:
    claim = Claim(prediction["statement"], lambda results: Outcome(None, ""))
    return answer_sentence(claim, Outcome(prediction["held"], prediction["evidence"]))
