"""A checkpoint in parts: each process writes and reads its own, and what befalls one part befalls the checkpoint."""

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
from heedful.training.checkpoint.format import list_checkpoints, newest_checkpoint, shard_file_name, read_checkpoint

SHARDED = "in double precision, sharded"


@pytest.fixture
def two_of_them(walked: Path, tmp_path: Path) -> Path:
    """The middle and the end of a sharded walk, as checkpoints of one run."""
    for place in ("middle", "end"):
        (only,) = list_checkpoints(walked / "2" / SHARDED / place)
        shutil.copytree(only, tmp_path / only.name)
    return tmp_path


def test_each_process_writes_its_share(walked: Path) -> None:
    (path,) = list_checkpoints(walked / "2" / SHARDED / "end")
    parts = [load_file(path / shard_file_name(number, 2)) for number in range(2)]
    numbers = [sum(tensor.numel() for tensor in tensors.values()) for tensors in parts]
    assert sum(numbers) == sum(t.shape.numel() for t in read_checkpoint(path, "walk").tensors.values())
    assert max(numbers) < 0.52 * sum(numbers)
    assert sorted(file.name for file in path.iterdir()) == ["metadata.json", "manifest.json", shard_file_name(0, 2), shard_file_name(1, 2)]


def test_a_run_in_one_piece_has_one_file_whoever_else_trains_it(walked: Path) -> None:
    (path,) = list_checkpoints(walked / "2" / "in double precision" / "end")
    assert sorted(file.name for file in path.iterdir()) == ["metadata.json", "manifest.json", "state.safetensors"]


def test_saving_and_restoring_put_no_tensor_together_and_each_reads_its_share(walked: Path) -> None:
    folder = walked / "2" / "nothing is put together"
    found = [json.loads((folder / f"read-by-{rank}").read_text()) for rank in range(2)]
    assert found[0]["cut"] > 0.99 * found[0]["whole"]
    for each in found:
        assert each["read"] < 0.52 * each["whole"]
    before, after = (
        read_checkpoint(list_checkpoints(place)[0], "walk").tensors
        for place in (walked / "2" / SHARDED / "middle", folder / "kept")
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        whole = tuple(slice(None) for _ in tensor.shape)
        assert torch.equal(tensor[whole], after[name][whole])


def test_a_disk_that_is_full_for_the_second_is_told_by_all_and_harms_nothing(walked: Path) -> None:
    folder = walked / "2" / "disk full for the second"
    said = [(folder / f"said-by-{rank}").read_text() for rank in range(2)]
    assert said[0] == said[1]
    assert "step-00000006: the checkpoint's " in said[0]
    assert "bytes could not be written: " in said[0]
    assert [path.name for path in (folder / "kept").iterdir()] == ["step-00000005"], "no debris"
    assert newest_checkpoint(folder / "kept", "walk", pytest.fail).step == 5


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(("harm", "words"), [(flip, "is damaged"), (Path.unlink, "is missing")])
@pytest.mark.parametrize("number", [0, 1])
def test_harm_to_one_part_is_named_and_an_older_checkpoint_is_taken(
    two_of_them: Path, harm: Callable[[Path], object], words: str, number: int
) -> None:
    newest = list_checkpoints(two_of_them)[0]
    harm(newest / shard_file_name(number, 2))
    heard: list[str] = []
    assert newest_checkpoint(two_of_them, "walk", heard.append).step == 5
    (line,) = heard
    assert f"{newest / shard_file_name(number, 2)} {words}" in line
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(newest, "walk")


def test_a_part_of_another_checkpoint_is_no_part_of_this(two_of_them: Path) -> None:
    newest, older = list_checkpoints(two_of_them)
    shutil.copy(older / shard_file_name(1, 2), newest / shard_file_name(1, 2))
    with pytest.raises(CheckpointError, match=r"state-00002-of-00002\.safetensors is damaged"):
        read_checkpoint(newest, "walk")


def test_what_is_read_does_not_depend_on_which_part_is_read_first(two_of_them: Path, walks: Any) -> None:
    newest, _ = list_checkpoints(two_of_them)
    for name, tensor in read_checkpoint(newest, "walk").tensors.items():
        rows = tensor.shape[0] if tensor.shape else 0
        if rows < 2:
            continue
        columns = tuple(slice(None) for _ in tensor.shape[1:])
        thirds = [slice(i * rows // 3, (i + 1) * rows // 3) for i in range(3)]
        put = torch.cat([tensor[(third, *columns)] for third in thirds])
        assert torch.equal(put, tensor[(slice(None), *columns)]), name
