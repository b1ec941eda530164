"""Token ids on disk, read through memory maps: a corpus may be larger than memory.

A store is a folder of sequences, written once under a name that is the hash of everything it depends on (the files'
contents, the tokenizer, the limits), and never changed; a manifest has its checksums. Two flat files per side instead
of Arrow or HDF5: a batch is slices of one memory map, without a further dependency.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import CheckpointError, DataError, HeedfulError
from heedful.files import commit_folder, remove_abandoned, temporary_folder, verify_manifest, write_manifest
from heedful.user_cache import cache_folder

Ids = npt.NDArray[np.integer[Any]]
FORMAT = 6


class Sequences:
    """A list of token-id sequences as two arrays: all ids concatenated, and where each sequence ends."""

    def __init__(self, ids: Ids, ends: Ids) -> None:
        self.ids = ids
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])

    @classmethod
    def open(cls, folder: Path, name: str) -> Sequences:
        """Memory-map the sequences that a writer stored under this name."""
        described = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return cls(
            _memory_map(folder / f"{name}.ids", described["dtype"]), _memory_map(folder / f"{name}.ends", "int64")
        )

    @classmethod
    def from_lists(cls, sequences: list[list[int]]) -> Sequences:
        """Sequences in memory."""
        lengths = [len(ids) for ids in sequences]
        return cls(np.fromiter((i for ids in sequences for i in ids), np.int64), np.cumsum(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)


class SequencesWriter:
    """Appends sequences in parts, so that memory is bounded however long one of them is."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self.dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
        self.folder, self.name = folder, name
        self._ids = (folder / f"{name}.ids").open("wb")
        self._ends = (folder / f"{name}.ends").open("wb")
        self._written = 0
        self._ended = 0

    def write(self, ids: list[int]) -> None:
        """Append ids to the current sequence."""
        self._ids.write(np.asarray(ids, self.dtype).tobytes())
        self._written += len(ids)

    def end(self) -> None:
        """End the current sequence."""
        self._ends.write(np.int64(self._written).tobytes())
        self._ended = self._written

    def close(self) -> None:
        with self._ids, self._ends:
            if self._ended != self._written:
                self.end()
        described = {"dtype": self.dtype, "ids": self._written}
        (self.folder / f"{self.name}.json").write_text(json.dumps(described), encoding="utf-8")


def store_path(key: dict[str, Any]) -> Path:
    """The folder of the store for this key, in HEEDFUL_CACHE or the user's cache."""
    digest = hashlib.sha256(json.dumps({**key, "format": FORMAT}, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "stores" / digest[:24]


@contextmanager
def create_store(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the store on success; on failure it is removed.

    Temporary folders left by killed processes are removed first.
    """
    size = 0
    try:
        remove_abandoned(folder.parent)
        with temporary_folder(folder) as temporary:
            try:
                yield temporary
            finally:
                size = sum(file.stat().st_size for file in temporary.iterdir())
            write_manifest(temporary, sorted(file.name for file in temporary.iterdir()))
            if not is_intact(folder):  # another run may have written the same store meanwhile
                commit_folder(temporary, folder)
    except OSError as error:
        raise HeedfulError(f"{folder}: the token ids, {size:,} bytes and more, could not be written: {error}") from None


def is_intact(folder: Path) -> bool:
    """Whether the store exists and every file has the checksum of its manifest."""
    try:
        verify_manifest(folder)
    except (CheckpointError, OSError):
        return False
    return True


def _memory_map(file: Path, dtype: str) -> Ids:
    if file.stat().st_size == 0:
        raise DataError(f"{file} holds no tokens: everything was filtered out")
    return np.asarray(np.memmap(file, dtype=dtype, mode="r"))  # slices of a memmap itself take twice as long
