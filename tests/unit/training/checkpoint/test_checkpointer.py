"""When checkpoints are saved: at the recipe's or a chosen interval, at the end, and on a stop signal."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.errors import HeedfulError, StoppedError
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.training.checkpoint import checkpointer as module
from heedful.training.checkpoint.checkpointer import Checkpointer
from heedful.training.checkpoint.format import list_checkpoints, read_checkpoint
from heedful.training.checkpoint.run_manifest import STATE_FOLDER, write_run_manifest
from heedful.training.recipe import TrainingRecipe, make_recipe
from heedful.training.reporting.events import Events
from heedful.training.signals import StopSignal
from heedful.training.trainer import Trainer


def make_checkpointer(folder: Path, every: int = 0, device: str = "cpu") -> Checkpointer:
    """The checkpointer of a run of 100 steps with an evaluation every 10."""
    model = heedful.build("laptop-writer", vocabulary=20, width=16, heads=2, layers=1)
    training = TrainingRecipe(steps=100, evaluate_every=10, checkpoint_every=every)
    settings: dict[str, Any] = {
        "task": "generate",
        "data": {"train": ()},
        "tokenizer": {"vocabulary": 300},
        "model": {"family": "decoder"},
        "training": training.model_dump(),
    }
    manifest = write_run_manifest(folder, make_recipe(settings), model.config, (), torch.device(device), {})
    batches = TextBatches(Sequences.from_lists([[7, 8, 9, 10]]), context=2, rows=1, seed=0)
    trainer = Trainer(model, CausalLMLoss(), batches, training, seed=0, device=torch.device(device), events=Events())
    return Checkpointer(folder, manifest, trainer)


def saves(folder: Path, monkeypatch: pytest.MonkeyPatch, *, save_seconds: float, every: int = 0) -> list[int]:
    """The steps after which a checkpoint is saved, with a fake clock: a step takes a second."""
    clock, written = [0.0], []

    def write(folder: Path, checkpoint: Any, **_: Any) -> Path:
        clock[0] += save_seconds
        written.append(checkpoint.step)
        return folder

    checkpointer = make_checkpointer(folder, every)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "write_checkpoint", write)
    for step in range(1, 101):
        clock[0] += 1.0
        checkpointer.trainer.progress.step = step
        checkpointer.after_step(StopSignal())
    return written


def test_fast_saves_follow_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves(tmp_path, monkeypatch, save_seconds=0.1) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_slow_saves_are_rare_except_for_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves(tmp_path, monkeypatch, save_seconds=1.5) == [10, 90, 100]


def test_checkpoint_every_overrides_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves(tmp_path, monkeypatch, save_seconds=50.0, every=40) == [40, 80, 100]


def test_a_stop_signal_saves_and_the_error_says_how_to_resume(tmp_path: Path) -> None:
    stop, checkpointer = StopSignal(), make_checkpointer(tmp_path)
    checkpointer.trainer.progress.step = 7
    stop.handle(15, None)
    with pytest.raises(StoppedError, match=r"after step 7 and saved; resume with: heedful\.train\(resume=") as caught:
        checkpointer.after_step(stop)
    assert caught.value.exit_code == 143
    assert [path.name for path in list_checkpoints(tmp_path / "training")] == ["step-00000007"]
    with pytest.raises(SystemExit) as second:
        stop.handle(2, None)
    assert second.value.code == 130


@pytest.mark.gpu
def test_background_saves_on_a_gpu_write_the_state_at_the_time_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed, write = threading.Event(), module.write_checkpoint

    def write_later(*arguments: Any, **options: Any) -> Path:
        assert proceed.wait(10)
        return write(*arguments, **options)

    monkeypatch.setattr(module, "write_checkpoint", write_later)
    checkpointer = make_checkpointer(tmp_path, device="cuda")
    before = {name: weight.clone() for name, weight in checkpointer.trainer.model.state_dict().items()}
    path = checkpointer.save()
    stream = checkpointer.trainer.batch_stream()
    for _ in range(3):
        checkpointer.trainer.step(stream)
    assert not path.exists()
    proceed.set()
    checkpointer.wait()
    written = read_checkpoint(path, checkpointer.manifest.run_id).tensors
    for name, weight in before.items():
        assert torch.equal(written[f"model.{name}"][(slice(None),) * weight.ndim], weight.cpu())
        assert not torch.equal(checkpointer.trainer.model.state_dict()[name], weight)


@pytest.mark.gpu
def test_a_failed_background_save_is_raised_by_the_next_one(tmp_path: Path) -> None:
    checkpointer = make_checkpointer(tmp_path, device="cuda")
    (tmp_path / STATE_FOLDER / "step-00000000.tmp").write_text("a file where a folder should be")
    checkpointer.save()
    with pytest.raises(HeedfulError, match="could not be written"):
        checkpointer.save()
