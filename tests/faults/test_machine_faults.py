"""Failures of the machine: one line, an exit code, no partial files, and the run can be resumed."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.training.checkpoint.format import list_checkpoints

SETTINGS = {
    "tokenizer.kind": "characters",
    "model.width": 64,
    "model.heads": 2,
    "model.layers": 1,
    "training.batch_tokens": 400,
    "training.evaluate_every": 5,
    "training.checkpoint_every": 5,
    "training.steps": 10,
}


def command(dates: Path, **changes: Any) -> list[str | Path]:
    words = [word for key, value in {**SETTINGS, **changes}.items() for word in ("--set", f"{key}={value}")]
    pair = [dates / "train.source", dates / "train.target"]
    valid = ["--valid", dates / "valid.source", "--valid", dates / "valid.target"]
    return ["train", "translate", *pair, *valid, "--device", "cpu", *words]


def error(done: Any, code: int) -> str:
    """The error line that the command ends with."""
    assert done.code == code, done.output
    assert "Traceback" not in done.output, done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("heedful: ")]
    return str(line)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A disk (tmpfs) of a given size, where mounting is permitted; a second call makes it larger."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def of(size: int) -> Path:
        options = f"{'remount,' if disk.is_mount() else ''}size={size}"
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], stderr=-1, check=False)
        if made.returncode:
            pytest.skip("mounting a small disk is not permitted here")
        return disk

    yield of
    subprocess.run(["umount", str(disk)], stderr=-1, check=False)


@pytest.fixture(scope="module")
def undisturbed(fork_server: Any, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run without faults."""
    folder = tmp_path_factory.mktemp("sound")
    done = fork_server.run(*command(dates), "--out", "run", folder=folder)
    assert done.code == 0, done.output
    return (folder / "run" / "model.safetensors").read_bytes()


def test_a_full_disk_keeps_the_older_checkpoint_and_the_run_resumes_with_more_space(
    fork_server: Any, dates: Path, small_disk: Any, undisturbed: bytes, tmp_path: Path
) -> None:
    weights = len(undisturbed)
    run = small_disk(9 * weights) / "run"  # enough for two checkpoints and the best model, not for a third
    line = error(fork_server.run(*command(dates), "--out", run, folder=tmp_path), 1)
    assert f"{run}/training/step-00000010: the checkpoint's " in line
    assert "bytes could not be written" in line
    assert "No space left" in line
    assert [path.name for path in list_checkpoints(run / "training")] == ["step-00000005", "step-00000000"]
    assert not list(run.glob("**/*.tmp")), "no temporary files"
    small_disk(20 * weights)
    done = fork_server.run("train", "--resume", run, folder=tmp_path)
    assert done.code == 0, done.output
    assert (run / "model.safetensors").read_bytes() == undisturbed


def test_a_file_size_limit_is_reported_in_bytes_and_keeps_the_older_checkpoint(
    fork_server: Any, dates: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    """The first checkpoint, of weights and averages, fits; the next, with the optimizer's state, does not."""
    limit = {"RLIMIT_FSIZE": 3 * len(undisturbed)}
    stopped = fork_server.run(*command(dates), "--out", "small", folder=tmp_path, limits=limit)
    line = error(stopped, 1)
    assert "small/training/step-00000005" in line
    assert "bytes could not be written" in line
    assert [path.name for path in list_checkpoints(tmp_path / "small" / "training")] == ["step-00000000"]
    assert not list(tmp_path.glob("small/**/*.tmp"))
    done = fork_server.run("train", "--resume", "small", folder=tmp_path)
    assert done.code == 0, done.output
    assert (tmp_path / "small" / "model.safetensors").read_bytes() == undisturbed


def test_a_full_disk_under_the_data_store_is_one_line_and_leaves_no_files(
    fork_server: Any, dates: Path, small_disk: Any, tmp_path: Path
) -> None:
    disk = small_disk(16_384)
    cache = f"import os; os.environ['HEEDFUL_CACHE'] = {str(disk)!r}"
    done = fork_server.run(*command(dates), "--out", "run", folder=tmp_path, before=cache)
    line = error(done, 1)
    assert str(disk) in line
    assert "bytes and more, could not be written" in line
    assert not list(disk.glob("stores/*"))
    assert not (tmp_path / "run").exists()


MEMORY = """
import resource
held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (held + 800_000_000, held + 800_000_000))
import heedful.training.run as run
run.evaluate_and_report = lambda *_: None  # saves time
"""


@pytest.mark.slow
def test_out_of_memory_names_the_setting_and_auto_batch_lowers_it(
    fork_server: Any, dates: Path, tmp_path: Path
) -> None:
    large = command(dates, **{"training.batch_tokens": 16_000, "model.feed_forward": 8192, "training.steps": 1})
    line = error(fork_server.run(*large, "--out", "run", folder=tmp_path, before=MEMORY), 1)
    assert "out of memory with training.batch_tokens=16000" in line
    assert not (tmp_path / "run").exists(), "it was detected before the run began"
    done = fork_server.run(*large, "--out", "auto", "--auto-batch", folder=tmp_path, before=MEMORY)
    assert done.code == 0, done.output
    assert "starting over with training.batch_tokens=8000, training.accumulate=2" in done.output
    recipe = (tmp_path / "auto" / "recipe.toml").read_text()
    tokens, accumulate = (
        int(next(line.split(" = ")[1] for line in recipe.splitlines() if line.startswith(name)))
        for name in ("batch_tokens", "accumulate")
    )
    assert tokens * accumulate == 16_000
    assert tokens < 16_000


SHORT = """
from heedful.training.trainer import Trainer
undisturbed = Trainer.step
def step(self, stream):
    if {when}:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    return undisturbed(self, stream)
Trainer.step = step
"""


def test_auto_batch_halves_the_batch_and_keeps_the_tokens_per_step(
    fork_server: Any, dates: Path, tmp_path: Path
) -> None:
    short = SHORT.format(when="self.recipe.batch_tokens > 150")
    done = fork_server.run(*command(dates), "--out", "run", "--auto-batch", folder=tmp_path, before=short)
    assert done.code == 0, done.output
    for now in ("batch_tokens=200, training.accumulate=2", "batch_tokens=100, training.accumulate=4"):
        assert f"out of memory: starting over with training.{now}" in done.output
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert "batch_tokens = 100\naccumulate = 4\n" in recipe


def test_out_of_memory_late_in_a_run_leaves_its_checkpoints(fork_server: Any, dates: Path, tmp_path: Path) -> None:
    late = SHORT.format(when="self.progress.step == 7 and self.events.listeners")
    line = error(fork_server.run(*command(dates), "--out", "run", folder=tmp_path, before=late), 1)
    assert "out of memory with training.batch_tokens=400" in line
    assert list_checkpoints(tmp_path / "run" / "training")[0].name == "step-00000005"
    assert fork_server.run("train", "--resume", "run", folder=tmp_path).code == 0


def test_a_killed_loader_worker_is_an_error_not_a_hang(fork_server: Any, dates: Path, tmp_path: Path) -> None:
    long = command(dates, **{"training.workers": 1, "training.steps": 5000, "training.evaluate_every": 200})
    process = fork_server.start(*long, "--out", "run", folder=tmp_path)
    process.wait_for_output("step     80")
    worker = next(iter(children(process.pid)))
    start = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    line = error(process.wait(), 1)
    assert time.monotonic() - start < 30
    assert "a DataLoader worker died" in line
    assert "heedful train --resume run" in line


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


POISON = """
import torch
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
calls, original = [0], Seq2SeqLoss.loss
def loss(self, model, batch):
    calls[0] += model.training and started[0]
    return original(self, model, batch) * (float("nan") if model.training and started[0] and {when} else 1.0)
Seq2SeqLoss.loss = loss
import heedful.training.run as run
started, create_run_folder = [False], run.create_run_folder
def create_and_note(*arguments):
    started[0] = True
    return create_run_folder(*arguments)
run.create_run_folder = create_and_note
"""


SIZES = [pytest.param(f"size={size}k", marks=pytest.mark.slow) for size in (16, 40, 90)]


@pytest.mark.parametrize("options", ["ro", *SIZES])
def test_unusable_shared_memory_is_reported_with_the_setting_that_avoids_it(
    options: str, dates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container whose /dev/shm is tiny or read-only."""
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    words = command(dates, **{"training.workers": 2, "training.steps": 3})
    heedful = [sys.executable, "-m", "heedful", *map(str, words), "--out", str(tmp_path / "run")]
    mount = f"mount -t tmpfs -o {options} tmpfs /dev/shm 2> /dev/null || exit 99; exec {shlex.join(heedful)}"
    done = subprocess.run(["unshare", "-m", "bash", "-c", mount], capture_output=True, text=True, check=False)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("a /dev/shm of its own is not permitted here")
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("heedful: ")]
    assert done.returncode == 0 or "shared memory (/dev/shm)" in lines[-1], done.stderr
    assert done.returncode == 0 or "--set training.workers=0" in lines[-1]
    assert done.returncode == 1 or options == "size=90k"


def test_a_nan_loss_is_skipped_and_counted_and_repeated_ones_end_the_run(
    fork_server: Any, dates: Path, tmp_path: Path
) -> None:
    once = fork_server.run(*command(dates), "--out", "run", folder=tmp_path, before=POISON.format(when="calls[0] == 3"))
    assert once.code == 0, once.output
    assert "skipped step 3 (epoch 0, batch 2): loss nan" in once.output
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [event["skipped"] for event in events if event["kind"] == "step"][-1] == 1
    always = fork_server.run(
        *command(dates), "--out", "lost", folder=tmp_path, before=POISON.format(when="calls[0] >= 4")
    )
    line = error(always, 5)
    assert "not finite 5 times in a row, last at step 8 (epoch 0, batch 7)" in line
    assert list_checkpoints(tmp_path / "lost" / "training")[0].name == "step-00000005"


class Payload:
    """Runs when unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("disguise", ["pytorch_model.bin", "model.safetensors", "model.pt", "a file"])
def test_a_malicious_pickle_is_refused_and_never_runs(
    fork_server: Any, dates: Path, disguise: str, tmp_path: Path
) -> None:
    ran, model = tmp_path / "ran", tmp_path / "model"
    payload = pickle.dumps(Payload(ran))
    pickle.loads(payload)
    assert ran.exists(), "the payload works"
    ran.unlink()
    if disguise == "a file":
        model.write_bytes(payload)
    else:
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"model_type": "marian", "d_model": 8}))
        (model / disguise).write_bytes(payload)
    for arguments in (
        ["evaluate", "model", dates / "test.source", dates / "test.target"],
        [*command(dates), "--out", "run", "--from", "model"],
        ["train", "--resume", "model"],
    ):
        assert "model" in error(fork_server.run(*arguments, folder=tmp_path), 4)
        assert not ran.exists()
