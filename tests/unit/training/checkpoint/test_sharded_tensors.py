"""Tensors sharded in any way can be read by any slices; the files are plain safetensors."""

from __future__ import annotations

import hashlib
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from heedful.errors import CheckpointError
from heedful.training.checkpoint.sharded_tensors import (
    DTYPE_NAMES,
    StoredTensor,
    TensorShard,
    open_shards,
    write_shards,
)

Spans = list[tuple[int, int]]


def spans(length: int, boundaries: list[int]) -> Spans:
    """Split a range at these boundaries."""
    ends = sorted({0, length, *(boundary % (length + 1) for boundary in boundaries)})
    return list(pairwise(ends)) or [(0, 0)]


def split(tensor: Tensor, rows: list[int], columns: list[int]) -> list[TensorShard]:
    shape = tuple(tensor.shape)
    return [
        TensorShard(tensor[top:bottom, left:right], (top, left), shape)
        for top, bottom in spans(shape[0], rows)
        for left, right in spans(shape[1], columns)
    ]


def write_files(folder: Path, shards: list[TensorShard]) -> list[Path]:
    files = [folder / f"{number}.safetensors" for number in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        write_shards(file, {"w": shard})
    return files


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(0, 6), st.integers(1, 6)),
    rows=st.lists(st.integers(0, 99), max_size=3),
    columns=st.lists(st.integers(0, 99), max_size=2),
    wanted=st.tuples(*(st.integers(0, 6) for _ in range(4))),
)
def test_any_slices_can_be_read_however_the_tensor_was_sharded(
    tmp_path: Path, shape: tuple[int, int], rows: list[int], columns: list[int], wanted: tuple[int, ...]
) -> None:
    tensor = torch.arange(shape[0] * shape[1]).view(shape)
    stored = open_shards(write_files(tmp_path, split(tensor, rows, columns)))["w"]
    top, bottom, left, right = wanted
    slices = (slice(min(top, bottom), max(top, bottom)), slice(min(left, right), max(left, right)))
    assert stored.shape == tensor.shape
    assert torch.equal(stored[slices], tensor[slices])


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_every_dtype_keeps_its_bits_and_is_read_by_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"many": (torch.randn(5, 3) * 9).to(dtype).t(), "one": torch.ones((), dtype=dtype), "a": torch.ones(1)}
    write_shards(tmp_path / "f", {name: TensorShard(t, (0,) * t.ndim, tuple(t.shape)) for name, t in tensors.items()})
    plain, stored = load_file(tmp_path / "f"), open_shards([tmp_path / "f"])
    for name, tensor in tensors.items():
        assert plain[name].dtype == stored[name].dtype == tensor.dtype
        assert torch.equal(plain[name], tensor)
        assert torch.equal(stored[name][tuple(slice(None) for _ in tensor.shape)], tensor)


def test_the_checksum_matches_the_file_and_equal_state_gives_equal_files(tmp_path: Path) -> None:
    shards = {name: TensorShard(torch.full((3,), float(i)), (0,), (3,)) for i, name in enumerate("ba")}
    first, second = write_shards(tmp_path / "1", shards), write_shards(tmp_path / "2", dict(reversed(shards.items())))
    assert first == second
    data = (tmp_path / "1").read_bytes()
    assert first.size == len(data)
    assert first.sha256 == hashlib.sha256(data).hexdigest()


def test_values_missing_from_all_files_are_an_error(tmp_path: Path) -> None:
    files = write_files(tmp_path, split(torch.ones(4, 2), [2], []))
    stored = open_shards(files[:1])["w"]
    assert torch.equal(stored[0:2, 0:2], torch.ones(2, 2))
    with pytest.raises(CheckpointError, match=r"2 values of a tensor of shape \(4, 2\) are in no file"):
        stored[1:3, 0:2]


def test_files_with_different_full_shapes_are_refused(tmp_path: Path) -> None:
    files = write_files(tmp_path, [TensorShard(torch.ones(2), (0,), (4,)), TensorShard(torch.ones(2), (2,), (5,))])
    with pytest.raises(CheckpointError, match=r"1\.safetensors: w has shape \(5,\), elsewhere \(4,\)"):
        open_shards(files)


def test_only_the_requested_slices_are_read(tmp_path: Path) -> None:
    class CountingSlice:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor, self.read = tensor, 0

        def get_shape(self) -> list[int]:
            return list(self.tensor.shape)

        def __getitem__(self, slices: tuple[slice, ...]) -> Tensor:
            self.read += self.tensor[slices].numel()
            return self.tensor[slices]

    parts = [CountingSlice(torch.ones(4, 3)) for _ in range(3)]
    stored = StoredTensor(torch.Size((12, 3)), torch.float32, [(part, (4 * i, 0)) for i, part in enumerate(parts)])
    assert stored[3:8, 0:3].sum() == 15
    assert [part.read for part in parts] == [3, 12, 0]


def test_torch_distributed_checkpoint_reads_the_same_files(tmp_path: Path) -> None:
    """`HuggingFaceStorageReader` finds the offsets of shards under the same key of the header."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
    tensor = torch.randn(7, 3)
    write_files(tmp_path, split(tensor, [3, 5], []))
    loaded = {"w": torch.zeros(7, 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.load(loaded, storage_reader=storage.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert torch.equal(loaded["w"], tensor)
