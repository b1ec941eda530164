"""Tensors cut in whatever way come back by blocks cut in any other; files are plain safetensors."""

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
from heedful.training.checkpoint.sharded_tensors import DTYPE_NAMES, TensorShard, StoredTensor, open_shards, write_shards

Cut = list[tuple[int, int]]


def spans(length: int, places: list[int]) -> Cut:
    """A line cut at these places."""
    ends = sorted({0, length, *(place % (length + 1) for place in places)})
    return list(pairwise(ends)) or [(0, 0)]


def cut(tensor: Tensor, rows: list[int], columns: list[int]) -> list[TensorShard]:
    whole = tuple(tensor.shape)
    return [
        TensorShard(tensor[top:bottom, left:right], (top, left), whole)
        for top, bottom in spans(whole[0], rows)
        for left, right in spans(whole[1], columns)
    ]


def written(folder: Path, pieces: list[TensorShard]) -> list[Path]:
    files = [folder / f"{number}.safetensors" for number in range(len(pieces))]
    for file, piece in zip(files, pieces, strict=True):
        write_shards(file, {"w": piece})
    return files


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(0, 6), st.integers(1, 6)),
    rows=st.lists(st.integers(0, 99), max_size=3),
    columns=st.lists(st.integers(0, 99), max_size=2),
    asked=st.tuples(*(st.integers(0, 6) for _ in range(4))),
)
def test_any_block_comes_back_however_the_whole_was_cut(
    tmp_path: Path, shape: tuple[int, int], rows: list[int], columns: list[int], asked: tuple[int, ...]
) -> None:
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    stored = open_shards(written(tmp_path, cut(whole, rows, columns)))["w"]
    top, bottom, left, right = asked
    block = (slice(min(top, bottom), max(top, bottom)), slice(min(left, right), max(left, right)))
    assert stored.shape == whole.shape
    assert torch.equal(stored[block], whole[block])


@pytest.mark.parametrize("kind", DTYPE_NAMES)
def test_each_kind_of_number_keeps_its_bits_and_safetensors_reads_it(tmp_path: Path, kind: torch.dtype) -> None:
    tensors = {"many": (torch.randn(5, 3) * 9).to(kind).t(), "one": torch.ones((), dtype=kind), "a": torch.ones(1)}
    write_shards(tmp_path / "f", {name: TensorShard(t, (0,) * t.ndim, tuple(t.shape)) for name, t in tensors.items()})
    plain, stored = load_file(tmp_path / "f"), open_shards([tmp_path / "f"])
    for name, tensor in tensors.items():
        assert plain[name].dtype == stored[name].dtype == tensor.dtype
        assert torch.equal(plain[name], tensor)
        assert torch.equal(stored[name][tuple(slice(None) for _ in tensor.shape)], tensor)


def test_the_sum_is_that_of_the_file_and_the_same_state_has_the_same(tmp_path: Path) -> None:
    pieces = {name: TensorShard(torch.full((3,), float(i)), (0,), (3,)) for i, name in enumerate("ba")}
    first, second = write_shards(tmp_path / "1", pieces), write_shards(tmp_path / "2", dict(reversed(pieces.items())))
    assert first == second
    data = (tmp_path / "1").read_bytes()
    assert first.size == len(data)
    assert first.sha256 == hashlib.sha256(data).hexdigest()


def test_what_is_in_no_file_is_an_error_and_not_an_empty_block(tmp_path: Path) -> None:
    files = written(tmp_path, cut(torch.ones(4, 2), [2], []))
    stored = open_shards(files[:1])["w"]
    assert torch.equal(stored[0:2, 0:2], torch.ones(2, 2))
    with pytest.raises(CheckpointError, match=r"2 numbers of a tensor of shape \(4, 2\) are in no file"):
        stored[1:3, 0:2]


def test_files_that_disagree_are_named(tmp_path: Path) -> None:
    files = written(tmp_path, [TensorShard(torch.ones(2), (0,), (4,)), TensorShard(torch.ones(2), (2,), (5,))])
    with pytest.raises(CheckpointError, match=r"1\.safetensors: w is of another shape than in the other files"):
        open_shards(files)


def test_only_the_block_that_is_asked_for_is_read(tmp_path: Path) -> None:
    class Watched:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor, self.read = tensor, 0

        def get_shape(self) -> list[int]:
            return list(self.tensor.shape)

        def __getitem__(self, block: tuple[slice, ...]) -> Tensor:
            self.read += self.tensor[block].numel()
            return self.tensor[block]

    parts = [Watched(torch.ones(4, 3)) for _ in range(3)]
    stored = StoredTensor(torch.Size((12, 3)), torch.float32, [(part, (4 * i, 0)) for i, part in enumerate(parts)])
    assert stored[3:8, 0:3].sum() == 15
    assert [part.read for part in parts] == [3, 12, 0]


def test_torchs_distributed_checkpoints_open_the_same_files(tmp_path: Path) -> None:
    """By `HuggingFaceStorageReader`, which knows where blocks begin from the same words."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
    whole = torch.randn(7, 3)
    written(tmp_path, cut(whole, [3, 5], []))
    found = {"w": torch.zeros(7, 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.load(found, storage_reader=storage.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert torch.equal(found["w"], whole)
