"""Token ids on disk, read through memory maps: a corpus may be larger than memory.

A store is a folder of sequences. It is written once, under a name that is the hash of everything it
depends on (the files' contents, the tokenizer, the limits), and never changed after; sums of its files say so.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import CheckpointError, DataError, HeedfulError
from heedful.files import commit_folder, remove_abandoned, temporary_folder, verify_manifest, write_manifest

Ids = npt.NDArray[np.integer[Any]]
FORMAT = 4


class Sequences:
    """A list of id sequences in two files: all ids end to end, and where each sequence ends."""

    def __init__(self, ids: Ids, ends: Ids) -> None:
        self.ids = ids
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])

    @classmethod
    def open(cls, folder: Path, name: str) -> Sequences:
        """Those that a writer left under this name, mapped rather than read."""
        described = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return cls(_map(folder / f"{name}.ids", described["type"]), _map(folder / f"{name}.ends", "int64"))

    @classmethod
    def from_lists(cls, sequences: list[list[int]]) -> Sequences:
        """A few, in memory."""
        lengths = [len(ids) for ids in sequences]
        return cls(np.fromiter((i for ids in sequences for i in ids), np.int64), np.cumsum(lengths))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)


class SequencesWriter:
    """Append sequences as they are tokenised; memory stays flat however long one of them is."""

    def __init__(self, folder: Path, name: str, vocabulary: int) -> None:
        self.type = "uint16" if vocabulary <= 1 << 16 else "uint32"
        self.folder, self.name = folder, name
        self._ids = (folder / f"{name}.ids").open("wb")
        self._ends = (folder / f"{name}.ends").open("wb")
        self._written = 0
        self._closed = 0

    def write(self, ids: list[int]) -> None:
        """More of the sequence being written."""
        self._ids.write(np.asarray(ids, self.type).tobytes())
        self._written += len(ids)

    def end(self) -> None:
        """The sequence is complete."""
        self._ends.write(np.int64(self._written).tobytes())
        self._closed = self._written

    def close(self) -> None:
        with self._ids, self._ends:
            if self._closed != self._written:
                self.end()
        described = {"type": self.type, "ids": self._written}
        (self.folder / f"{self.name}.json").write_text(json.dumps(described), encoding="utf-8")


def store_path(key: dict[str, Any], root: Path | None = None) -> Path:
    """Where the store for this key lives: in the user's cache unless HEEDFUL_CACHE says otherwise."""
    base = root or Path(os.environ.get("HEEDFUL_CACHE") or Path.home() / ".cache" / "heedful")
    digest = hashlib.sha256(json.dumps({**key, "format": FORMAT}, sort_keys=True).encode()).hexdigest()
    return base / "stores" / digest[:24]


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


def _map(file: Path, kind: str) -> Ids:
    if file.stat().st_size == 0:
        raise DataError(f"{file} holds no tokens: everything was filtered out")
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))  # parts of a memmap are memmaps, which take twice as long
