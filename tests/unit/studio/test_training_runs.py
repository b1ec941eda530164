"""Runs of the studio are those in its folder; one that a shell has started is found by its lock, and can be stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heedful.errors import UsageError
from heedful.studio.training_runs import TrainingRuns, is_running, training_process
from heedful.studio.workspace import Workspace

HOLDS_THE_LOCK = """
import fcntl, pathlib, sys, time
file = pathlib.Path(sys.argv[1]).open("w")
fcntl.lockf(file, fcntl.LOCK_EX)
try:
    print("locked", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""


def make_run(folder: Path) -> Path:
    (folder / "training").mkdir(parents=True)
    (folder / "recipe.toml").write_text('task = "translate"\n[data]\ntrain = ["a.en"]\n[training]\nsteps = 9\n')
    (folder / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n')
    (folder / "training/lock").touch()
    return folder


def test_only_runs_of_the_folder_are_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "outside")
    inside = tmp_path / "inside"
    make_run(inside / "run")
    (inside / "link").symlink_to(tmp_path / "outside")
    runs = TrainingRuns(Workspace(inside))
    assert runs.follow("run", 0)["events"][0]["step"] == 1
    for name in ("..", "../outside", ".", "", "run/../../outside", "none", "link"):
        with pytest.raises(UsageError, match="no such run"):
            runs.follow(name, 0)
    with pytest.raises(UsageError, match="no such run"):
        runs.resume("link")
    assert [run["name"] for run in runs.all_runs()] == ["run"]


@pytest.mark.skipif(sys.platform != "linux", reason="the holder of a lock is known on Linux alone")
def test_a_run_that_a_shell_has_started_can_be_stopped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    runs = TrainingRuns(Workspace(tmp_path))
    assert not is_running(folder)
    assert training_process(folder) is None
    with pytest.raises(UsageError, match="not running"):
        runs.stop("run")
    command = [sys.executable, "-c", HOLDS_THE_LOCK, str(folder / "training/lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_running(folder)
        assert training_process(folder) == process.pid
        followed = runs.follow("run", 0)
        assert (followed["state"], followed["can_stop"]) == ("running", True)
        runs.stop("run")
        assert process.wait(30) == 7
    assert not is_running(folder)
