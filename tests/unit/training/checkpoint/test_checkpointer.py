"""State is written when the recipe says, at the end, on demand; and never so often that it costs much."""

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


def keeper(folder: Path, every: int = 0, device: str = "cpu") -> Checkpointer:
    """Of a run of 100 steps that is evaluated every 10."""
    model = heedful.build("laptop-writer", vocabulary=20, width=16, heads=2, layers=1)
    training = TrainingRecipe(steps=100, evaluate_every=10, checkpoint_every=every)
    settings: dict[str, Any] = {
        "task": "generate",
        "data": {"train": ()},
        "tokenizer": {"vocabulary": 300},
        "model": {"family": "decoder"},
        "training": training.model_dump(),
    }
    begun = write_run_manifest(folder, make_recipe(settings), model.config, (), torch.device(device), {})
    batches = TextBatches(Sequences.from_lists([[7, 8, 9, 10]]), context=2, rows=1, seed=0)
    trainer = Trainer(model, CausalLMLoss(), batches, training, seed=0, device=torch.device(device), events=Events())
    return Checkpointer(folder, begun, trainer)


def saves(folder: Path, monkeypatch: pytest.MonkeyPatch, *, save_takes: float, every: int = 0) -> list[int]:
    """The steps after which state is written, by a clock we wind ourselves: a step takes a second."""
    clock, written = [0.0], []

    def write(folder: Path, checkpoint: Any, **_: Any) -> Path:
        clock[0] += save_takes
        written.append(checkpoint.step)
        return folder

    kept = keeper(folder, every)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "write_checkpoint", write)
    for step in range(1, 101):
        clock[0] += 1.0
        kept.trainer.progress.step = step
        kept.after_step(StopSignal())
    return written


def test_cheap_saves_come_with_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves(tmp_path, monkeypatch, save_takes=0.1) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_dear_saves_come_seldom_but_the_last_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves(tmp_path, monkeypatch, save_takes=1.5) == [10, 90, 100]


def test_the_recipe_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saves(tmp_path, monkeypatch, save_takes=50.0, every=40) == [40, 80, 100]


def test_asked_to_stop_it_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    stop, kept = StopSignal(), keeper(tmp_path)
    kept.trainer.progress.step = 7
    stop.note(15, None)
    with pytest.raises(StoppedError, match="after step 7 and saved; resume with: heedful train --resume") as caught:
        kept.after_step(stop)
    assert caught.value.exit_code == 143
    assert [path.name for path in list_checkpoints(tmp_path / "training")] == ["step-00000007"]
    with pytest.raises(SystemExit) as second:
        stop.note(2, None)
    assert second.value.code == 130


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_from_a_gpu_state_is_written_as_it_was_while_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write = threading.Event(), module.write_checkpoint

    def write_later(*given: Any, **options: Any) -> Path:
        assert go_on.wait(10)
        return write(*given, **options)

    monkeypatch.setattr(module, "write_checkpoint", write_later)
    kept = keeper(tmp_path, device="cuda")
    before = {name: weight.clone() for name, weight in kept.trainer.model.state_dict().items()}
    path = kept.save()
    stream = kept.trainer.batch_stream()
    for _ in range(3):
        kept.trainer.step(stream)
    assert not path.exists()
    go_on.set()
    kept.wait()
    written = read_checkpoint(path, kept.manifest.run_id).tensors
    for name, weight in before.items():
        assert torch.equal(written[f"model.{name}"][(slice(None),) * weight.ndim], weight.cpu())
        assert not torch.equal(kept.trainer.model.state_dict()[name], weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_from_a_gpu_a_save_that_failed_is_known_before_the_next(tmp_path: Path) -> None:
    kept = keeper(tmp_path, device="cuda")
    (tmp_path / STATE_FOLDER / "step-00000000.tmp").write_text("a file where a folder should be")
    kept.save()
    with pytest.raises(HeedfulError, match="could not be written"):
        kept.save()
