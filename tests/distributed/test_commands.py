"""The same command, started once for each device: one run, one folder, and no wait without end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.training.checkpoint.format import list_checkpoints

STEPS = 40
SETTINGS: dict[str, Any] = {
    "tokenizer.kind": "characters",
    "model.width": 16,
    "model.heads": 2,
    "model.layers": 1,
    "model.dropout": 0.0,
    "training.batch_tokens": 400,
    "training.steps": STEPS,
    "training.evaluate_every": 20,
    "training.checkpoint_every": 5,
    "training.learning_rate": 0.01,
    "training.warmup": 5,
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
HEEDFUL = ("-m", "heedful.cli")


def command(dates: Path, *more: str, **changes: Any) -> list[str]:
    words = [word for key, value in {**SETTINGS, **changes}.items() for word in ("--set", f"{key}={value}")]
    pair = [str(dates / "train.source"), str(dates / "train.target")]
    valid = ["--valid", str(dates / "valid.source"), "--valid", str(dates / "valid.target")]
    return ["train", "translate", *pair, *valid, "--device", "cpu", *words, *more]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def torchrun(home: Path, interpreter: Any) -> Any:
    """A command begun twice, by torchrun, in the folder of all runs."""

    def start(*words: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        words = (*TORCHRUN, *options, *HEEDFUL, *words)
        return interpreter(*words, folder=home, HEEDFUL_CACHE=str(home / "cache"))  # type: ignore[no-any-return]

    return start


def end(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def alone(fork_server: Any, dates: Path, home: Path) -> Any:
    """The same run by a process alone."""

    def train(name: str, **changes: Any) -> Path:
        done = fork_server.run(*command(dates, "--resume", name, **changes), folder=home)
        assert done.code == 0, done.output
        return home / name

    return train


@pytest.fixture(scope="module")
def two(torchrun: Any, dates: Path, home: Path) -> Path:
    said = end(torchrun(*command(dates, "--out", "two")))
    assert said.count(f"step     40/{STEPS}  loss") == 1, "one process speaks for all"
    return home / "two"


def losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["kind"] == "step"]


def test_under_torchrun_the_same_run_comes_out(alone: Any, two: Path) -> None:
    one = alone("one")
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)
    files = [{str(path.relative_to(run)) for path in run.rglob("*")} for run in (one, two)]
    assert files[0] == files[1]
    assert heedful.load(two).translate("5 May 1990")
    assert json.loads((two / "training" / "run.json").read_text())["machine"]["processes"] == 2


@pytest.mark.slow
def test_what_two_have_begun_in_shards_one_goes_on_with(torchrun: Any, alone: Any, dates: Path) -> None:
    endless = {"training.schedule": "constant"}
    half = {**endless, "training.steps": STEPS // 2, "training.shard": "true"}
    end(torchrun(*command(dates, "--out", "half", **half)))
    run, straight = alone("half", **endless, **{"training.shard": "false"}), alone("straight", **endless)
    assert losses(run) == pytest.approx(losses(straight), abs=1e-4)


DYING = """
import os, signal, sys
from pathlib import Path
import heedful.training.checkpoint.format as module
from heedful.cli.app import main
sound = module.write_shards
def write_shards(file, shards):
    found = sound(file, shards)
    if "step-00000015" in str(file) and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        file.write_bytes(file.read_bytes()[:-100])
        os.kill(os.getpid(), signal.SIGKILL)
    return found
module.write_shards = write_shards
main()
"""


@pytest.mark.slow
def test_a_rank_killed_while_it_writes_its_part_costs_no_more_than_that_checkpoint(
    interpreter: Any, alone: Any, dates: Path, home: Path
) -> None:
    script = home / "dying.py"
    script.write_text(DYING)
    words = command(dates, "--resume", "dying", **{"training.shard": "true"})
    start = [*TORCHRUN, "--max-restarts", "1", script, *words]
    said = end(interpreter(*start, folder=home, HEEDFUL_CACHE=str(home / "cache")))
    assert "resuming after step 10 of 40" in said
    assert losses(home / "dying") == pytest.approx(losses(alone("one")), abs=1e-4)
    assert not list((home / "dying").rglob("*.tmp"))
    assert len(list((home / "dying" / "training" / f"step-{STEPS:08d}").glob("state-*-of-00002.safetensors"))) == 2


@pytest.mark.slow
def test_a_finished_run_is_given_back_to_all(torchrun: Any, two: Path) -> None:
    said = end(torchrun("train", "--resume", "two", "--device", "cpu"))
    assert "the run in two is finished" in said


def rank_of(pid: int) -> str:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), "")


def until_step(run: Path, step: int, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not any(int(path.name[5:]) >= step for path in list_checkpoints(run / "training")):
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_rank_that_is_killed_costs_a_restart_and_changes_nothing(
    torchrun: Any, dates: Path, home: Path, two: Path
) -> None:
    process = torchrun(*command(dates, "--resume", "killed"), options=("--max-restarts", "1"))
    until_step(home / "killed", 10)
    (victim,) = (int(pid.name) for pid in Path("/proc").glob("[0-9]*") if killable(int(pid.name), process.pid))
    os.kill(victim, signal.SIGKILL)
    said = end(process)
    assert "resuming after step" in said
    for name in ("model.safetensors", f"training/step-{STEPS:08d}/state.safetensors"):
        torch.testing.assert_close(load_file(home / "killed" / name), load_file(two / name), rtol=0, atol=0)


def killable(pid: int, launcher: int) -> bool:
    """Whether it is the second process of this launcher."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return False
    return parent == launcher and rank_of(pid) == "1"


@pytest.mark.parametrize("silent", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_no_longer_answers_is_named(ranks: Any, dates: Path, tmp_path: Path, silent: int) -> None:
    words = command(dates, "--out", "run", **{"training.steps": 100_000, "training.evaluate_every": 50_000})
    run = ranks.start(2, *words, folder=tmp_path, HEEDFUL_TIMEOUT="3", HEEDFUL_CACHE=str(tmp_path / "cache"))
    until_step(tmp_path / "run", 5)
    run[silent].send(signal.SIGSTOP)
    start = time.monotonic()
    try:
        run[1 - silent].wait_until(run[1 - silent].has_ended, 30)
        took = time.monotonic() - start
    finally:
        for process in run:
            process.send(signal.SIGKILL)
        ended = [process.wait() for process in run]
    code, said = ended[1 - silent].code, ended[1 - silent].output
    assert code == 1
    assert took < 20
    assert "heedful: rank" in said
    if silent:
        assert "heedful: rank 1 on " in said
        assert "has not answered for 3 s (HEEDFUL_TIMEOUT)" in said
        assert "--resume" in said
    else:
        assert "rank 0" in said


@pytest.mark.slow
def test_a_rank_that_is_gone_ends_the_others_with_a_line(ranks: Any, dates: Path, tmp_path: Path) -> None:
    words = command(dates, "--out", "run", **{"training.steps": 100_000, "training.evaluate_every": 50_000})
    run = ranks.start(2, *words, folder=tmp_path, HEEDFUL_CACHE=str(tmp_path / "cache"))
    until_step(tmp_path / "run", 5)
    run[1].send(signal.SIGKILL)
    (first, said), (second, _) = ranks.finish(run, 30)
    assert (first, second) == (1, -signal.SIGKILL)
    last = said.strip().splitlines()[-1]
    assert "heedful: rank 1 on " in last
    assert "--resume" in last


@pytest.mark.slow
def test_asked_to_stop_all_stop_at_one_step_and_go_on(torchrun: Any, dates: Path, home: Path, two: Path) -> None:
    process = torchrun(*command(dates, "--resume", "stopped"))
    until_step(home / "stopped", 5)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert "stopped after step" in said
    said = end(torchrun(*command(dates, "--resume", "stopped")))
    name = f"training/step-{STEPS:08d}/state.safetensors"
    torch.testing.assert_close(load_file(home / "stopped" / name), load_file(two / name), rtol=0, atol=0)


def test_what_only_one_process_can_train_is_said_by_the_first(ranks: Any, dates: Path, tmp_path: Path) -> None:
    words = ("train", "embed", str(dates / "train.source"), "--device", "cpu")
    (first, said), (other, heard) = ranks.finish(ranks.start(2, *words, folder=tmp_path), 60)
    assert (first, other) == (2, 1)
    assert said.strip() == "heedful: embed is trained by a single process: run it without torchrun"
    assert heard.strip() == "heedful: rank 0 could not start the run: see its error message"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--auto-batch",), ("--check-resume",), ("--set", "model.widht=3")])
@pytest.mark.slow
def test_what_cannot_be_is_said_by_the_first_and_ends_all(ranks: Any, dates: Path, tmp_path: Path, words: Any) -> None:
    (first, said), (other, _) = ranks.finish(ranks.start(2, *command(dates, *words), folder=tmp_path), 60)
    assert first == 2
    assert other == 1
    assert "heedful: " in said
