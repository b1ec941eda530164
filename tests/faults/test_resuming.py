"""Resuming: which settings and files may change, and how damaged checkpoints are handled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.files import verify_manifest
from heedful.training.checkpoint.format import list_checkpoints
from heedful.training.checkpoint.run_manifest import lock_run_folder

SETTINGS = {
    "tokenizer.kind": "characters",
    "model.width": 16,
    "model.heads": 2,
    "model.layers": 1,
    "training.batch_tokens": 400,
    "training.evaluate_every": 5,
    "training.checkpoint_every": 5,
    "training.keep_checkpoints": 3,
    "training.schedule": "constant",
}


def settings(**changes: Any) -> list[str]:
    return [word for key, value in {**SETTINGS, **changes}.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def half(fork_server: Any, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10 steps that was killed while it was being scored."""
    folder = tmp_path_factory.mktemp("half")
    shutil.copytree(dates, folder / "text")
    pair = [folder / "text" / "train.source", folder / "text" / "train.target"]
    kill = "import os, heedful.training.run as run; run.evaluate_and_report = lambda *_: os.kill(os.getpid(), 9)"
    done = fork_server.run(
        "train", "translate", *pair, *settings(), "--steps", "10", "--out", "run", "--device", "cpu",
        folder=folder, before=kill,
    )  # fmt: skip
    assert done.code == -9, done.output
    assert [path.name for path in list_checkpoints(folder / "run" / "training")] == [
        "step-00000010",
        "step-00000005",
        "step-00000000",
    ]
    return folder


@pytest.fixture
def folder(half: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run for a test to change."""
    copy = Path(shutil.copytree(half, tmp_path / "copy"))
    for file in (copy / "run" / "recipe.toml", copy / "run" / "training" / "run.json"):
        assert "../text/train.source" in file.read_text(), "relative to the run's folder, so that it may move with them"
        assert str(half) not in file.read_text()
    return copy


def resume(fork_server: Any, folder: Path, *more: str | Path, run: str = "run") -> Any:
    done = fork_server.run("train", "--resume", run, *more, folder=folder)
    assert "Traceback" not in done.output
    return done


def error(message: str) -> str:
    (line,) = [line for line in message.splitlines() if line.startswith("heedful: ")]
    return line


def test_a_finished_run_is_reported_with_or_without_its_state(fork_server: Any, folder: Path) -> None:
    assert resume(fork_server, folder).code == 0
    card = (folder / "run" / "card.md").read_bytes()
    with (folder / "run" / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "note", "text": "proved since then"}) + "\n")
    again = resume(fork_server, folder)
    assert (again.code, "finished" in again.output) == (0, True)
    shutil.rmtree(folder / "run" / "training")
    tidied = resume(fork_server, folder)
    assert (tidied.code, "finished" in tidied.output) == (0, True)
    assert (folder / "run" / "card.md").read_bytes() == card


def test_two_processes_never_train_in_one_folder(fork_server: Any, folder: Path) -> None:
    with lock_run_folder(folder / "run"):
        done = resume(fork_server, folder)
    assert done.code == 2
    assert error(done.output) == "heedful: another process is training in run: wait for it, or stop it first"
    assert resume(fork_server, folder).code == 0


MEANWHILE = """
import heedful.training.run as run
from pathlib import Path
original = run.prepare_run
def prepare_run(*arguments):
    prepared = original(*arguments)
    Path("translate-1").mkdir()
    Path("translate-1/recipe.toml").write_text("another's")
    return prepared
run.prepare_run, run.evaluate_and_report = prepare_run, lambda *_: None
"""


def test_a_folder_taken_by_another_run_meanwhile_is_not_used(fork_server: Any, half: Path, tmp_path: Path) -> None:
    pair = [half / "text" / "train.source", half / "text" / "train.target"]
    words = ["train", "translate", *pair, *settings(), "--steps", "2", "--device", "cpu"]
    done = fork_server.run(*words, folder=tmp_path, before=MEANWHILE)
    assert done.code == 0, done.output
    assert "folder     translate-2" in done.output
    assert (tmp_path / "translate-2" / "model.safetensors").exists()
    assert [file.name for file in (tmp_path / "translate-1").iterdir()] == ["recipe.toml"]
    assert (tmp_path / "translate-1" / "recipe.toml").read_text() == "another's"


def test_a_locked_run_is_not_cleaned_up(fork_server: Any, folder: Path) -> None:
    writing = folder / "run" / "training" / "step-00000015.tmp"
    writing.mkdir()
    with lock_run_folder(folder / "run"):
        assert resume(fork_server, folder).code == 2
    assert writing.exists()


AWAY = """
import os
from heedful.training.trainer import Trainer
sound = Trainer.step
def step(self, stream):
    if self.progress.step == 11:
        {what}
    return sound(self, stream)
Trainer.step = step
"""


@pytest.mark.parametrize("what", ["os.rename('run', 'away')", "os.unlink('run/tokenizer.json')"])
def test_a_run_whose_folder_disappears_fails_at_the_next_save(fork_server: Any, folder: Path, what: str) -> None:
    done = fork_server.run("train", "--resume", "run", "--steps", "40", folder=folder, before=AWAY.format(what=what))
    assert done.code == 1, done.output
    assert error(done.output).startswith("heedful: run/"), done.output
    assert "step     20" not in done.output
    assert (folder / "run").exists() == ("rename" not in what), "the folder is not created again"


STOPPED = """
import os, signal
import heedful.training.run as run
from heedful.training.checkpoint.checkpointer import Checkpointer
def stopped(self):
    os.kill(os.getpid(), signal.{name})
    return save(self)
save = Checkpointer.save
{where} = {what}
"""
NOW = "lambda *_: os.kill(os.getpid(), signal.{name})"


@pytest.mark.parametrize(
    ("where", "name", "code", "message"),
    [
        ("run.prepare_run", "SIGTERM", 143, "stopped before the run began"),
        ("run.evaluate_and_report", "SIGTERM", 143, "stopped; resume with: heedful train --resume run"),
        ("run.evaluate_and_report", "SIGINT", 130, "stopped; resume with: heedful train --resume run"),
        (
            "Checkpointer.save",
            "SIGINT",
            130,
            "stopped after step 11 and saved; resume with: heedful train --resume run",
        ),
    ],
)
def test_a_stop_signal_outside_the_training_loop(
    fork_server: Any, folder: Path, where: str, name: str, code: int, message: str
) -> None:
    what = "stopped" if where == "Checkpointer.save" else NOW.format(name=name)
    before = STOPPED.format(where=where, what=what, name=name)
    pair = [folder / "text" / "train.source", folder / "text" / "train.target"]
    words = ["translate", *pair, "--out", "new"] if where == "run.prepare_run" else ["--resume", "run", "--steps", "11"]
    done = fork_server.run("train", *words, folder=folder, before=before)
    assert (done.code, error(done.output)) == (code, f"heedful: {message}"), done.output
    assert not (folder / "new").exists()


def test_changed_settings_are_refused_and_the_safe_ones_listed(fork_server: Any, folder: Path) -> None:
    changes = ("--set", "model.width=32", "--set", "training.clip=2.5", "--seed", "9", "--set", "training.workers=1")
    done = resume(fork_server, folder, *changes)
    line = error(done.output)
    assert done.code == 2
    for words in (
        "model.width was 16 and is now 32",
        "training.clip was 1.0 and is now 2.5",
        "seed was 1 and is now 9",
    ):
        assert words in line
    assert "training.workers was" not in line
    assert "a resumed run may change" in line
    assert "training.patience" in line


def test_an_edited_recipe_file_is_refused(fork_server: Any, folder: Path) -> None:
    recipe = folder / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("clip = 1.0", "clip = 9.0"))
    done = resume(fork_server, folder)
    assert done.code == 2
    assert "training.clip was 1.0 and is now 9.0" in error(done.output)


def test_a_run_without_its_recipe_file_resumes_from_the_manifest(fork_server: Any, folder: Path) -> None:
    recipe = folder / "run" / "recipe.toml"
    text = recipe.read_text()
    recipe.unlink()
    done = resume(fork_server, folder)
    assert done.code == 0, done.output
    assert recipe.read_text() == text


def test_safe_settings_may_change_and_a_constant_schedule_may_be_extended(fork_server: Any, folder: Path) -> None:
    done = resume(
        fork_server, folder, "--set", "training.keep_checkpoints=1", "--set", "training.patience=50", "--steps", "15"
    )
    assert done.code == 0, done.output
    assert [path.name for path in list_checkpoints(folder / "run" / "training")] == ["step-00000015"]
    assert "keep_checkpoints = 1" in (folder / "run" / "recipe.toml").read_text()
    steps = [json.loads(line).get("step") for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [step for step in steps if step and step > 10]
    assert logged == [11, 12, 13, 14, 15, 15], "each step is logged once; the last with its evaluation"


def test_changed_files_are_refused_and_moved_files_are_not(fork_server: Any, half: Path, folder: Path) -> None:
    moved = [folder / "text" / "train.source", folder / "text" / "train.target"]
    done = resume(fork_server, folder, "translate", *moved, "--steps", "11")
    assert done.code == 0, done.output
    moved[0].write_text(moved[0].read_text() + "one more\n")
    moved[1].write_text(moved[1].read_text() + "one more\n")
    done = resume(fork_server, folder, "translate", *moved, "--steps", "12")
    assert done.code == 3
    assert f"{moved[0]} has changed since the run began" in error(done.output)


@pytest.mark.parametrize("name", ["nowhere", "text", "file", "run/training/step-00000007"])
def test_a_folder_without_a_run_is_named(fork_server: Any, folder: Path, name: str) -> None:
    (folder / "file").write_bytes(b"\x80\x04.")
    done = resume(fork_server, folder, run=name)
    assert done.code == 4
    assert name.split("/")[0] in error(done.output)


def flip(file: Path, fraction: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(fraction * (len(data) - 1))] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: (path / "state.safetensors").write_bytes((path / "state.safetensors").read_bytes()[:-9]),
    "flipped data": lambda path: flip(path / "state.safetensors", 0.9),
    "flipped header": lambda path: flip(path / "state.safetensors", 0.0),
    "flipped metadata": lambda path: flip(path / "metadata.json", 0.5),
    "flipped manifest": lambda path: flip(path / "manifest.json", 0.3),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "empty file": lambda path: (path / "metadata.json").write_bytes(b""),
    "empty folder": lambda path: [file.unlink() for file in path.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_a_warning_or_refused_when_named(
    fork_server: Any, folder: Path, damage: str
) -> None:
    newest = folder / "run" / "training" / "step-00000010"
    DAMAGE[damage](newest)
    named = resume(fork_server, folder, run="run/training/step-00000010")
    assert named.code == 4
    assert "step-00000010" in error(named.output)
    if damage == "flipped data":
        done = resume(fork_server, folder)
        assert done.code == 0, done.output
        assert "step-00000010/state.safetensors is damaged" in done.output
        assert "resuming after step 5 of 10" in done.output


def test_a_damaged_best_model_is_trained_again(fork_server: Any, folder: Path) -> None:
    best = folder / "run" / "model.safetensors"
    whole = best.read_bytes()
    flip(best, 0.5)
    skip = "import heedful.training.run as run; run.evaluate_and_report = lambda *_: None"
    done = fork_server.run("train", "--resume", "run", "--time", "60", folder=folder, before=skip)
    assert done.code == 0, done.output
    assert "run/model.safetensors is damaged" in done.output
    assert "resuming after step 5 of 10" in done.output
    assert "--time has no effect on a resumed run" in done.output
    assert best.read_bytes() == whole


@pytest.mark.parametrize("half_done", [True, False])
def test_a_lost_best_model_is_replaced_by_the_weights_of_the_last_checkpoint(
    fork_server: Any, folder: Path, half_done: bool
) -> None:
    """No checkpoint is from before the best model was saved; the run can be finished all the same."""
    if not half_done:
        assert resume(fork_server, folder).code == 0
    for path in list_checkpoints(folder / "run" / "training")[1:]:
        shutil.rmtree(path)
    flip(folder / "run" / "model.safetensors", 0.5)
    done = resume(fork_server, folder)
    assert done.code == 0, done.output
    assert "every checkpoint is newer: the weights of step 10 replace it" in done.output
    verify_manifest(folder / "run")
    assert (folder / "run" / "card.md").is_file()


def test_if_all_checkpoints_are_damaged_all_are_named(fork_server: Any, folder: Path) -> None:
    for path in list_checkpoints(folder / "run" / "training"):
        flip(path / "state.safetensors", 0.5)
    done = resume(fork_server, folder)
    assert done.code == 4
    for step in (0, 5, 10):
        assert f"step-{step:08d}/state.safetensors is damaged" in error(done.output)


def test_a_checkpoint_of_another_run_is_skipped(fork_server: Any, folder: Path) -> None:
    run = folder / "run" / "training" / "run.json"
    run.write_text(run.read_text() + " ")
    done = resume(fork_server, folder)
    assert done.code == 4
    assert "step-00000010 belongs to another run" in error(done.output)
    run.write_text("{}")
    done = resume(fork_server, folder)
    assert done.code == 4
    assert "run.json is damaged" in error(done.output)
