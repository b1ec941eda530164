"""Checkpoints are read back exactly or refused with an error; writing one never damages another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from heedful.errors import CheckpointError, HeedfulError
from heedful.files import write_manifest
from heedful.training.checkpoint import format as module
from heedful.training.checkpoint.format import (
    Checkpoint,
    list_checkpoints,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from heedful.training.distributed.fsdp import local_slices


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {"model.w": torch.full((3, 2), float(step)), "count": torch.tensor(step), "half": torch.ones(2).half()}


def state(step: int, run: str = "a") -> Checkpoint:
    return Checkpoint(
        run, step, {**tensors(step)}, {"seconds": 0.1 + step, "progress": {"best": -float("inf"), "history": []}}
    )


def test_a_checkpoint_is_read_back_exactly(tmp_path: Path) -> None:
    written = state(7)
    read = read_checkpoint(write_checkpoint(tmp_path, written, keep=1), "a")
    assert (read.run_id, read.step, read.metadata) == (written.run_id, written.step, written.metadata)
    assert read.tensors.keys() == written.tensors.keys()
    for name, tensor in tensors(7).items():
        values = read.tensors[name][local_slices(tensor)]
        assert torch.equal(values, tensor)
        assert values.dtype == tensor.dtype


def test_a_checkpoint_without_sharding_information_is_read(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(7), keep=1)
    metadata = json.loads((path / "metadata.json").read_text())
    del metadata["parts"]
    (path / "metadata.json").write_text(json.dumps(metadata))
    save_file(tensors(8), path / "state.safetensors")
    write_manifest(path, ("state.safetensors", "metadata.json"))
    assert torch.equal(read_checkpoint(path, "a").tensors["model.w"][0:3, 0:2], torch.full((3, 2), 8.0))


def test_the_newest_checkpoints_are_kept_and_later_steps_are_deleted(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, state(step), keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000040", "step-00000030"]
    write_checkpoint(tmp_path, state(35), keep=1)  # after resuming from 30
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000035"]


def test_every_flipped_bit_and_every_truncation_is_detected(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(1), keep=1)
    for file in path.iterdir():
        original = file.read_bytes()
        for index in range(len(original)):
            for bit in (0, 5, 7) if file.name == "manifest.json" else (index % 8,):
                damaged = bytearray(original)
                damaged[index] ^= 1 << bit
                file.write_bytes(damaged)
                with pytest.raises(CheckpointError, match="step-00000001"):
                    read_checkpoint(path, "a")
        for length in (0, 1, len(original) // 2, len(original) - 1):
            file.write_bytes(original[:length])
            if (file.name, length) != ("manifest.json", len(original) - 1):  # only its last newline is missing
                with pytest.raises(CheckpointError, match="step-00000001"):
                    read_checkpoint(path, "a")
        file.write_bytes(original)
    read_checkpoint(path, "a")


def test_checkpoints_of_other_runs_and_formats_are_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, state(1, run="b"), keep=1)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        read_checkpoint(path, "a")
    metadata = json.loads((path / "metadata.json").read_text())
    for invalid in ({**metadata, "format": "other"}, {}, []):
        (path / "metadata.json").write_text(json.dumps(invalid))
        write_manifest(path, ("state.safetensors", "metadata.json"))
        with pytest.raises(CheckpointError, match="step-00000001"):
            read_checkpoint(path, "b")


def test_damaged_checkpoints_are_skipped_and_all_are_listed_if_none_is_left(tmp_path: Path) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path, state(step), keep=2)
    warnings: list[str] = []
    (tmp_path / "step-00000020" / "metadata.json").unlink()
    assert newest_checkpoint(tmp_path, "a", warnings.append).step == 10
    assert len(warnings) == 1
    assert "step-00000020" in warnings[0]
    shutil.rmtree(tmp_path / "step-00000010")
    (tmp_path / "step-00000010").mkdir()
    with pytest.raises(CheckpointError, match=r"step-00000020.*step-00000010"):
        newest_checkpoint(tmp_path, "a", warnings.append)


def test_a_failed_write_keeps_the_older_checkpoint_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, state(10), keep=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_manifest", full)
    with pytest.raises(
        HeedfulError, match=r"step-00000020: the checkpoint's \d+ bytes could not be written: .*No space"
    ):
        write_checkpoint(tmp_path, state(20), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert read_checkpoint(tmp_path / "step-00000010", "a").step == 10


def test_pruning_removes_abandoned_folders_and_keeps_newer_checkpoints(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, state(step), keep=9)
    (tmp_path / "step-00000050.tmp").mkdir()
    (tmp_path / "step-00000005.old.tmp").mkdir()
    prune_checkpoints(tmp_path, state(30), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000030", "step-00000040"]
