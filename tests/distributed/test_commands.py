"""`heedful train` started once per rank: one run in one folder, and every failure ends all ranks in bounded time."""

from __future__ import annotations

import json
import os
import platform
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
HEEDFUL = ("-m", "heedful")


def command(dates: Path, *more: str, **changes: Any) -> list[str]:
    settings = [word for key, value in {**SETTINGS, **changes}.items() for word in ("--set", f"{key}={value}")]
    pair = [str(dates / "train.source"), str(dates / "train.target")]
    valid = ["--valid", str(dates / "valid.source"), "--valid", str(dates / "valid.target")]
    return ["train", "translate", *pair, *valid, "--device", "cpu", *settings, *more]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def torchrun(home: Path, interpreter: Any) -> Any:
    """Start a command as two ranks with torchrun."""

    def start(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        arguments = (*TORCHRUN, *options, *HEEDFUL, *arguments)
        return interpreter(*arguments, folder=home, HEEDFUL_CACHE=str(home / "cache"))  # type: ignore[no-any-return]

    return start


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def single_process(fork_server: Any, dates: Path, home: Path) -> Any:
    """Train the same run with a single process."""

    def train(name: str, **changes: Any) -> Path:
        done = fork_server.run(*command(dates, "--resume", name, **changes), folder=home)
        assert done.code == 0, done.output
        return home / name

    return train


@pytest.fixture(scope="module")
def two_ranks_run(torchrun: Any, dates: Path, home: Path) -> Path:
    output = finish(torchrun(*command(dates, "--out", "two")))
    assert output.count(f"step     40/{STEPS}  loss") == 1, "only rank 0 reports"
    return home / "two"


def losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["kind"] == "step"]


def test_torchrun_trains_the_same_model_as_a_single_process(single_process: Any, two_ranks_run: Path) -> None:
    single_run = single_process("single_run")
    assert losses(two_ranks_run) == pytest.approx(losses(single_run), abs=1e-4)
    files = [{str(path.relative_to(run)) for path in run.rglob("*")} for run in (single_run, two_ranks_run)]
    assert files[0] == files[1]
    assert heedful.load(two_ranks_run).translate("5 May 1990")
    assert json.loads((two_ranks_run / "training" / "run.json").read_text())["machine"]["processes"] == 2


@pytest.mark.slow
def test_one_process_resumes_a_sharded_run_of_two_ranks(torchrun: Any, single_process: Any, dates: Path) -> None:
    constant = {"training.schedule": "constant"}
    half = {**constant, "training.steps": STEPS // 2, "training.shard": "true"}
    finish(torchrun(*command(dates, "--out", "half", **half)))
    resumed, uninterrupted = (
        single_process("half", **constant, **{"training.shard": "false"}),
        single_process("uninterrupted", **constant),
    )
    assert losses(resumed) == pytest.approx(losses(uninterrupted), abs=1e-4)


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import heedful.training.checkpoint.format as module
from heedful.cli.app import main
original = module.write_shards
def write_shards(file, shards):
    checksum = original(file, shards)
    if "step-00000015" in str(file) and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        file.write_bytes(file.read_bytes()[:-100])
        os.kill(os.getpid(), signal.SIGKILL)
    return checksum
module.write_shards = write_shards
main()
"""


@pytest.mark.slow
def test_a_rank_killed_while_writing_its_shard_loses_only_that_checkpoint(
    interpreter: Any, single_process: Any, dates: Path, home: Path
) -> None:
    script = home / "killed.py"
    script.write_text(KILLED_WHILE_WRITING)
    arguments = command(dates, "--resume", "killed-while-writing", **{"training.shard": "true"})
    start = [*TORCHRUN, "--max-restarts", "1", script, *arguments]
    output = finish(interpreter(*start, folder=home, HEEDFUL_CACHE=str(home / "cache")))
    assert "resuming after step 10 of 40" in output
    assert losses(home / "killed-while-writing") == pytest.approx(losses(single_process("one")), abs=1e-4)
    assert not list((home / "killed-while-writing").rglob("*.tmp"))
    assert (
        len(
            list(
                (home / "killed-while-writing" / "training" / f"step-{STEPS:08d}").glob("state-*-of-00002.safetensors")
            )
        )
        == 2
    )


@pytest.mark.slow
def test_resuming_a_finished_run_loads_it_on_all_ranks(torchrun: Any, two_ranks_run: Path) -> None:
    output = finish(torchrun("train", "--resume", "two", "--device", "cpu"))
    assert "the run in two is finished" in output


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


def test_a_killed_rank_is_restarted_and_the_weights_stay_equal(
    torchrun: Any, dates: Path, home: Path, two_ranks_run: Path
) -> None:
    process = torchrun(*command(dates, "--resume", "killed"), options=("--max-restarts", "1"))
    until_step(home / "killed", 10)
    (victim,) = (int(pid.name) for pid in Path("/proc").glob("[0-9]*") if is_rank_one(int(pid.name), process.pid))
    os.kill(victim, signal.SIGKILL)
    output = finish(process)
    assert "resuming after step" in output
    for name in ("model.safetensors", f"training/step-{STEPS:08d}/state.safetensors"):
        torch.testing.assert_close(load_file(home / "killed" / name), load_file(two_ranks_run / name), rtol=0, atol=0)


def is_rank_one(pid: int, launcher: int) -> bool:
    """Whether the process is rank 1 of this launcher."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return False
    return parent == launcher and rank_of(pid) == "1"


@pytest.mark.parametrize("suspended", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_suspended_rank_is_named(ranks: Any, dates: Path, tmp_path: Path, suspended: int) -> None:
    arguments = command(dates, "--out", "run", **{"training.steps": 100_000, "training.evaluate_every": 50_000})
    run = ranks.start(2, *arguments, folder=tmp_path, HEEDFUL_TIMEOUT="3", HEEDFUL_CACHE=str(tmp_path / "cache"))
    until_step(tmp_path / "run", 5)
    run[suspended].send(signal.SIGSTOP)
    start = time.monotonic()
    try:
        run[1 - suspended].wait_until(run[1 - suspended].has_ended, 30)
        seconds = time.monotonic() - start
    finally:
        for process in run:
            process.send(signal.SIGKILL)
        ended = [process.wait() for process in run]
    code, output = ended[1 - suspended].code, ended[1 - suspended].output
    assert code == 1
    assert seconds < 20
    assert "heedful: rank" in output
    if suspended:
        assert "heedful: rank 1 on " in output
        assert "has not answered for 3 s (HEEDFUL_TIMEOUT)" in output
        assert "--resume" in output
    else:
        assert "rank 0" in output


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_with_an_error(ranks: Any, dates: Path, tmp_path: Path) -> None:
    arguments = command(dates, "--out", "run", **{"training.steps": 100_000, "training.evaluate_every": 50_000})
    run = ranks.start(2, *arguments, folder=tmp_path, HEEDFUL_TIMEOUT="10", HEEDFUL_CACHE=str(tmp_path / "cache"))
    until_step(tmp_path / "run", 5)
    run[1].send(signal.SIGKILL)
    (first, output), (second, _) = ranks.finish(run, 60)
    assert (first, second) == (1, -signal.SIGKILL)
    last = output.strip().splitlines()[-1]
    assert "heedful: rank 1 on " in last
    assert "--resume" in last


@pytest.mark.slow
def test_a_stop_signal_stops_all_ranks_at_the_same_step_and_the_run_resumes(
    torchrun: Any, dates: Path, home: Path, two_ranks_run: Path
) -> None:
    process = torchrun(*command(dates, "--resume", "stopped"))
    until_step(home / "stopped", 5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert "stopped after step" in output
    output = finish(torchrun(*command(dates, "--resume", "stopped")))
    name = f"training/step-{STEPS:08d}/state.safetensors"
    torch.testing.assert_close(load_file(home / "stopped" / name), load_file(two_ranks_run / name), rtol=0, atol=0)


def test_a_task_for_a_single_process_is_refused_by_rank_zero(ranks: Any, dates: Path, tmp_path: Path) -> None:
    arguments = ("train", "embed", str(dates / "train.source"), "--device", "cpu")
    (first, output), (second, second_output) = ranks.finish(ranks.start(2, *arguments, folder=tmp_path), 60)
    assert (first, second) == (2, 1)
    reason = "embed is trained by a single process: run it without torchrun"
    assert output.strip() == f"heedful: {reason}"
    assert second_output.strip() == f"heedful: rank 0 on {platform.node()} failed: {reason}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [("--auto-batch",), ("--check-resume",), ("--set", "model.widht=3")])
@pytest.mark.slow
def test_invalid_options_are_refused_by_rank_zero_and_end_all_ranks(
    ranks: Any, dates: Path, tmp_path: Path, options: Any
) -> None:
    (first, output), (second, _) = ranks.finish(ranks.start(2, *command(dates, *options), folder=tmp_path), 60)
    assert first == 2
    assert second == 1
    assert "heedful: " in output
