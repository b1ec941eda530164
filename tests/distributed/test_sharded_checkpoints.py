"""Sharded checkpoints: each rank writes and reads its shard; damage to one shard invalidates the checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from heedful.errors import CheckpointError
from heedful.training.checkpoint.format import list_checkpoints, newest_checkpoint, read_checkpoint, shard_file_name

SHARDED = "in double precision, sharded"


@pytest.fixture
def two_checkpoints(two_ranks: Path, tmp_path: Path) -> Path:
    """The middle and the end of a sharded scenario, as checkpoints of one run."""
    for name in ("middle", "end"):
        (path,) = list_checkpoints(two_ranks / "2" / SHARDED / name)
        shutil.copytree(path, tmp_path / path.name)
    return tmp_path


def test_each_rank_writes_its_shard(two_ranks: Path) -> None:
    (path,) = list_checkpoints(two_ranks / "2" / SHARDED / "end")
    shards = [load_file(path / shard_file_name(number, 2)) for number in range(2)]
    numbers = [sum(tensor.numel() for tensor in tensors.values()) for tensors in shards]
    assert sum(numbers) == sum(t.shape.numel() for t in read_checkpoint(path, "scenario").tensors.values())
    assert max(numbers) < 0.52 * sum(numbers)
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "metadata.json",
        shard_file_name(0, 2),
        shard_file_name(1, 2),
    ]


def test_an_unsharded_checkpoint_of_several_ranks_is_one_file(two_ranks: Path) -> None:
    (path,) = list_checkpoints(two_ranks / "2" / "in double precision" / "end")
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "metadata.json", "state.safetensors"]


def test_saving_and_restoring_gather_no_tensor_and_each_rank_reads_its_shard(two_ranks: Path) -> None:
    folder = two_ranks / "2" / "no full tensors"
    counts = [json.loads((folder / f"read-by-{rank}").read_text()) for rank in range(2)]
    assert counts[0]["sharded"] > 0.99 * counts[0]["total"]
    for count in counts:
        assert count["read"] < 0.52 * count["total"]
    before, after = (
        read_checkpoint(list_checkpoints(parent)[0], "scenario").tensors
        for parent in (two_ranks / "2" / SHARDED / "middle", folder / "checkpoints")
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        everything = tuple(slice(None) for _ in tensor.shape)
        assert torch.equal(tensor[everything], after[name][everything])


def test_a_full_disk_on_one_rank_raises_the_same_error_on_all_and_keeps_older_checkpoints(two_ranks: Path) -> None:
    folder = two_ranks / "2" / "disk full on rank 1"
    errors = [(folder / f"error-{rank}").read_text() for rank in range(2)]
    assert errors[0] == errors[1]
    assert "step-00000006: the checkpoint's " in errors[0]
    assert "bytes could not be written: " in errors[0]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000005"], "no abandoned files"
    assert newest_checkpoint(folder / "checkpoints", "scenario", pytest.fail).step == 5


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(("damage", "message"), [(flip, "is damaged"), (Path.unlink, "is missing")])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_shard_is_named_and_an_older_checkpoint_is_used(
    two_checkpoints: Path, damage: Callable[[Path], object], message: str, number: int
) -> None:
    newest = list_checkpoints(two_checkpoints)[0]
    damage(newest / shard_file_name(number, 2))
    warnings: list[str] = []
    assert newest_checkpoint(two_checkpoints, "scenario", warnings.append).step == 5
    (line,) = warnings
    assert f"{newest / shard_file_name(number, 2)} {message}" in line
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(newest, "scenario")


def test_a_shard_of_another_checkpoint_is_refused(two_checkpoints: Path) -> None:
    newest, older = list_checkpoints(two_checkpoints)
    shutil.copy(older / shard_file_name(1, 2), newest / shard_file_name(1, 2))
    with pytest.raises(CheckpointError, match=r"state-00002-of-00002\.safetensors is damaged"):
        read_checkpoint(newest, "scenario")


def test_slices_across_shards_join_to_the_full_tensor(two_checkpoints: Path, scenarios: Any) -> None:
    newest, _ = list_checkpoints(two_checkpoints)
    for name, tensor in read_checkpoint(newest, "scenario").tensors.items():
        rows = tensor.shape[0] if tensor.shape else 0
        if rows < 2:
            continue
        columns = tuple(slice(None) for _ in tensor.shape[1:])
        thirds = [slice(i * rows // 3, (i + 1) * rows // 3) for i in range(3)]
        joined = torch.cat([tensor[(third, *columns)] for third in thirds])
        assert torch.equal(joined, tensor[(slice(None), *columns)]), name
