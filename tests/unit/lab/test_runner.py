"""Running a study: files, resuming, reports, and studies of users."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.cli.app import main
from heedful.errors import UsageError
from heedful.lab.catalog import load_study
from heedful.lab.runner import run_study
from heedful.lab.stored_reports import write_index, write_reports

STUDY = """
from pathlib import Path
from heedful.lab import Dots, Lines, Measure, Claim, Study, grid

LOG = Path({log!r})

def measure(trial):
    with LOG.open("a") as log:
        log.write(f"{{trial.variant}} {{trial.seed}}\\n")
    value = trial.number("size") + 0.01 * trial.seed
    return {{"score": value, "curve": [value, value / 2]}}

def more(results):
    return results.is_more("score", {{"size": 2}}, {{"size": 1}})

STUDY = Study(
    name="sizes", question="Does size matter?", concept="Q1", setup="Sizes.", variants=grid(size=(1, 2)),
    measure=measure, measures=(Measure("score", "score"),), curves=(Measure("curve", "curve"),),
    predictions=(
        Claim("a greater size has a greater score", more),
        Claim("a greater size has a score above 5", lambda results: results.is_above("score", {{"size": 2}}, 5.0)),
        Claim("the sizes are alike", lambda r: r.is_close("score", {{"size": 1}}, {{"size": 2}}, within=2.0)),
    ),
    panels=(Dots("score"), Lines("score", x="size"), Lines("curve")), would_change="Other sizes.",
    budget={{"steps": 3}}, quick={{"steps": 1}},
)
"""


@pytest.fixture
def study(tmp_path: Path) -> tuple[str, Callable[[], list[str]]]:
    """A user's study, and a function that lists the trials measured so far."""
    file, log = tmp_path / "sizes.py", tmp_path / "log"
    file.write_text(STUDY.format(log=str(log)), encoding="utf-8")
    load_study.cache_clear()
    return str(file), lambda: log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def test_a_run_writes_results_report_and_pictures(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    run_study(study[0], tmp_path / "out", seeds=3, processes=1)
    folder = tmp_path / "out" / "sizes"
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert [prediction["held"] for prediction in stored["predictions"]] == [True, False, True]
    assert len(stored["trials"]) == 6
    assert {"heedful", "torch", "python"} == stored["versions"].keys()
    assert stored["seeds"] == [1, 2, 3]
    assert (folder / "sizes.png").stat().st_size < 60_000
    assert (folder / "sizes.svg").exists()
    text = (folder / "report.md").read_text(encoding="utf-8")
    answer = text.split("## Answer")[1].split("![")[0].strip()
    assert answer.startswith(
        "As predicted, a greater size has a greater score; score is 2.02 at size 2 and 1.02 at size 1, "
        "a difference of 1.00 (in every seed)."
    )
    assert "The prediction that a greater size has a score above 5 did not hold; score is 2.02 at size 2" in answer
    assert len(re.findall(r"\. (?=The prediction that|As predicted)", answer)) == 2
    assert f"heedful lab run {study[0]} --seeds 3" in text
    for heading in ("Predicted before", "Set-up", "Measured", "What would change"):
        assert f"## {heading}" in text
    assert "| 1 | 1.02 (1.00 to 1.04) |" in text
    assert "--seeds 3" in text
    assert "quick" not in text.lower()


def test_a_repeated_run_reuses_all_trials(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    run_study(study[0], tmp_path, seeds=2, processes=1)
    run_study(study[0], tmp_path, seeds=3, processes=1)
    assert sorted(study[1]()) == [f"size = {size} {seed}" for size in (1, 2) for seed in (1, 2, 3)]


def test_an_interrupted_run_continues(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    from contextlib import nullcontext

    with pytest.raises(KeyboardInterrupt):
        run_study(study[0], tmp_path, seeds=2, processes=1, start_progress=lambda name, total: nullcontext(interrupt))
    assert len(study[1]()) == 1
    run_study(study[0], tmp_path, seeds=2, processes=1)
    assert len(study[1]()) == 4


def test_a_changed_study_or_budget_is_measured_again(
    study: tuple[str, Callable[[], list[str]]], tmp_path: Path
) -> None:
    run_study(study[0], tmp_path, seeds=1, processes=1)
    run_study(study[0], tmp_path, seeds=1, processes=1, quick=True)
    assert len(study[1]()) == 4
    file = Path(study[0])
    file.write_text(file.read_text(encoding="utf-8").replace("0.01", "0.02"), encoding="utf-8")
    load_study.cache_clear()
    run_study(study[0], tmp_path, seeds=1, processes=1, quick=True)
    assert len(study[1]()) == 6


def test_a_damaged_trial_is_measured_again(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    run_study(study[0], tmp_path, seeds=1, processes=1)
    (tmp_path / "sizes" / "trials" / "size-1-seed-1.json").write_text("{", encoding="utf-8")
    run_study(study[0], tmp_path, seeds=1, processes=1)
    assert len(study[1]()) == 3


def test_the_report_of_a_quick_run_has_a_note(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    run_study(study[0], tmp_path, seeds=1, processes=1, quick=True)
    text = (tmp_path / "sizes" / "report.md").read_text(encoding="utf-8")
    assert "*Quick run: small models, short training" in text
    assert "This run does not decide whether" in text


@pytest.mark.slow
def test_parallel_processes_measure_the_same(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    apart = run_study(study[0], tmp_path / "a", seeds=2, processes=2)
    alone = run_study(study[0], tmp_path / "b", seeds=2, processes=1)
    assert [trial.measured for trial in apart.trials] == [trial.measured for trial in alone.trials]


@pytest.mark.slow
def test_a_killed_run_leaves_no_processes(study: tuple[str, Callable[[], list[str]]], tmp_path: Path) -> None:
    """SIGKILL ends only the parent: its children, here in a trial that never ends, must exit by themselves."""
    file = Path(study[0])
    endless = "    while LOG.with_name('alive').write_text('') == 0:\n        import time; time.sleep(0.1)\n    value ="
    file.write_text(file.read_text(encoding="utf-8").replace("    value =", endless), encoding="utf-8")
    command = [sys.executable, "-m", "heedful", "lab", "run", str(file), "--seeds", "1", "--processes", "2"]
    alive = tmp_path / "alive"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as run:
        wait_for(alive.exists)
        run.kill()
    time.sleep(1)
    alive.unlink(missing_ok=True)
    time.sleep(2)
    assert not alive.exists()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(("exclusive", "threads"), [(False, 1), (True, 2)])
def test_a_trial_has_one_thread_unless_it_measures_time(tmp_path: Path, exclusive: bool, threads: int) -> None:
    file = tmp_path / "threads.py"
    code = "import torch\n" + STUDY.format(log=str(tmp_path / "log"))
    code = code.replace("value = trial.number", "value = torch.get_num_threads() * trial.number")
    file.write_text(code.replace("panels=", f"exclusive={exclusive}, panels="), encoding="utf-8")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = run_study(str(file), tmp_path, seeds=1, processes=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [round(trial.measured["score"]) for trial in results.trials] == [threads, 2 * threads]


def test_a_wrong_name_in_a_prediction_is_an_error_before_the_first_trial(
    study: tuple[str, Callable[[], list[str]]], tmp_path: Path
) -> None:
    file = Path(study[0])
    file.write_text(file.read_text(encoding="utf-8").replace('is_more("score"', 'is_more("scores"'), encoding="utf-8")
    with pytest.raises(UsageError, match="study 'sizes' has no measure 'scores'"):
        run_study(study[0], tmp_path, seeds=1, processes=1)
    assert study[1]() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_a_study_names_the_trial(
    study: tuple[str, Callable[[], list[str]]], tmp_path: Path, processes: int
) -> None:
    file = Path(study[0])
    file.write_text(file.read_text(encoding="utf-8").replace("value = trial", "1 / 0 + trial"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"^study 'sizes', variant size = 1, seed 1: measure stops with ZeroDivision"):
        run_study(study[0], tmp_path, seeds=1, processes=processes)


def test_the_index_lists_every_study(tmp_path: Path) -> None:
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert "| skips | What is the role of the skip-connection? | no report yet | |" in text


def test_reports_are_rewritten_from_their_results(tmp_path: Path) -> None:
    """Rewriting gives the same page; the report of a study whose predictions changed is left unchanged."""
    write_stored(tmp_path / "windows")
    folder = tmp_path / "windows"
    assert write_reports(tmp_path) == tmp_path / "README.md"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "which symbol came first is 100% with concatenated vectors (in every seed)" in text
    assert "| [windows](windows/report.md) | Do feed-forward networks contain order? | held" in (
        tmp_path / "README.md"
    ).read_text(encoding="utf-8")
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert stored["date"] == "2020-02-02"
    stored["predictions"][0]["statement"] = "something else was predicted"
    (folder / "results.json").write_text(json.dumps(stored), encoding="utf-8")
    (folder / "report.md").write_text("as it was", encoding="utf-8")
    write_reports(tmp_path)
    assert (folder / "report.md").read_text(encoding="utf-8") == "as it was"


def write_stored(folder: Path) -> None:
    """Write results of the study of windows in the format of a run."""
    study = load_study("windows")
    facts = {
        "command": "heedful lab run windows", "size": "full", "budget": {"steps": 1}, "seeds": [1, 2],
        "versions": {"heedful": "0"}, "machine": "a CPU", "load": 0.0, "date": "2020-02-02", "seconds": 1.0,
        "setup": "Toys.",
    }  # fmt: skip
    trials = [
        {"variant": dict(variant.factors), "seed": seed, "seconds": 0.5, "measured": {"first": 1.0, "text": 2.0}}
        for variant in study.variants
        for seed in (1, 2)
    ]
    predictions = [
        {"statement": prediction.statement, "held": None, "evidence": ""} for prediction in study.predictions
    ]
    content = {"study": study.name, "question": study.question, **facts, "predictions": predictions, "trials": trials}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("content", ["{", "{}", "[1]", ""])
def test_a_damaged_results_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "skips").mkdir()
    (tmp_path / "skips" / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=r"skips/results.json .*delete it and run its study again"):
        write_reports(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\n", "defines no STUDY"),
        ("import nothing_of_this_name\n", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_file_without_a_study_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "empty.py"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_study(str(file))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lab", "run", "skip"], "did you mean 'skips'?"),
        (["lab", "run", "missing.py"], "missing.py does not exist"),
        (["lab", "report", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_a_user_error_is_one_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["heedful", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
