"""Tensors in pieces: each process writes the blocks that it keeps, and reads those that it needs, whoever wrote them.

    state-00001-of-00002.safetensors      w: rows 0–3 of 7
    state-00002-of-00002.safetensors      w: rows 4–6 of 7

The files are safetensors; where a block begins in the whole stands in the header as JSON, as torch's own distributed
checkpoints have it (`HuggingFaceStorageReader` opens these, too). Its writer is not used: it makes two more copies of
what it writes, in memory, and the same state need not give the same file twice. Here one block goes after the other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import torch
from safetensors import safe_open
from torch import Tensor

from heedful.errors import CheckpointError
from heedful.files import Checksum

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
SHARDING_INFO = "DCP_SHARDING_INFO"
"""The key of the header that says where blocks begin."""

Slices = tuple[slice, ...]


@runtime_checkable
class SliceableTensor(Protocol):
    """What blocks can be taken from: a tensor in memory, or one in files."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, block: Slices, /) -> Tensor: ...


def is_sharded(tensor: SliceableTensor) -> TypeGuard[DTensor]:
    """Whether other processes keep other parts of it. Told by what it can do: a process alone need not import what cuts
    weights into shards, which takes half a second."""
    return hasattr(tensor, "full_tensor")


@dataclass(frozen=True)
class TensorShard:
    """A block of a tensor, where it begins in the whole, and how large that is."""

    tensor: Tensor
    offsets: tuple[int, ...]
    full_shape: tuple[int, ...]


def write_shards(file: Path, shards: Mapping[str, TensorShard]) -> Checksum:
    """A safetensors file, on the disk when this returns. Its SHA-256 is that of what was meant to be written."""
    ordered = sorted(shards.items(), key=lambda item: (-item[1].tensor.itemsize, item[0]))  # so that all are aligned
    places = {name: {"saved_offsets": piece.offsets, "whole": piece.full_shape} for name, piece in ordered}
    header: dict[str, Any] = {"__metadata__": {SHARDING_INFO: json.dumps(places)}}
    end = 0
    for name, piece in ordered:
        start, end = end, end + piece.tensor.nbytes
        kind, shape = DTYPE_NAMES[piece.tensor.dtype], list(piece.tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    digest = hashlib.sha256()
    with file.open("wb") as stream:
        for data in _contents(said, [piece.tensor for _, piece in ordered]):
            stream.write(data)
            digest.update(data)
        stream.flush()
        os.fsync(stream.fileno())
    return Checksum(8 + len(said) + end, digest.hexdigest())


def _contents(header: bytes, tensors: Iterable[Tensor]) -> Iterator[bytes | memoryview]:
    """Of a file, one tensor after the other: on a GPU, no more than one of them is in main memory at a time."""
    yield len(header).to_bytes(8, "little")
    yield header
    for tensor in tensors:
        yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files. Of what is asked for, each file gives what it has; no more than that is read."""

    shape: torch.Size
    dtype: torch.dtype
    shards: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)
    """Slices of open files, and where they begin."""

    def __getitem__(self, block: Slices, /) -> Tensor:
        asked = [part.indices(length)[:2] for part, length in zip(block, self.shape, strict=True)]
        starts = [start for start, _ in asked]
        found = torch.empty([end - start for start, end in asked], dtype=self.dtype)
        missing = found.numel()
        for piece, begins in self.shards:
            ends = [begin + length for begin, length in zip(begins, piece.get_shape(), strict=True)]
            both = [(max(a, c), min(b, d)) for (a, b), c, d in zip(asked, begins, ends, strict=True)]
            if all(start < end for start, end in both):
                found[_counted_from(starts, both)] = piece[_counted_from(begins, both)]
                missing -= math.prod(end - start for start, end in both)
        if missing:
            raise CheckpointError(f"{missing:,} numbers of a tensor of shape {tuple(self.shape)} are in no file")
        return found


def _counted_from(firsts: Sequence[int], spans: Sequence[tuple[int, int]]) -> Slices:
    return tuple(slice(start - first, end - first) for first, (start, end) in zip(firsts, spans, strict=True))


def open_shards(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """All tensors of these files, by name; their contents are read when they are asked for."""
    kinds = {name: kind for kind, name in DTYPE_NAMES.items()}
    found: dict[str, StoredTensor] = {}
    for path in files:
        file: Any = safe_open(path, framework="pt")
        places = json.loads((file.metadata() or {}).get(SHARDING_INFO, "{}"))
        for name in file.keys():  # noqa: SIM118, it is no dict
            piece = file.get_slice(name)
            shape = piece.get_shape()
            place = places.get(name, {"saved_offsets": [0] * len(shape), "whole": shape})
            whole = torch.Size(place["whole"])
            stored = found.setdefault(name, StoredTensor(whole, kinds[piece.get_dtype()]))
            if stored.shape != whole:
                raise CheckpointError(f"{path}: {name} is of another shape than in the other files")
            stored.shards.append((piece, tuple(place["saved_offsets"])))
    return found
