"""Token ids on disk, read through memory maps: a corpus may be larger than memory.

A store is a folder of sequences. It is written once, under a name that is the hash of everything it
depends on (the files' contents, the tokenizer, the limits), and never changed after; sums of its files say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import DataError, HeedfulError

Ids = npt.NDArray[np.integer[Any]]
FORMAT = 3
SUMS, DAMAGED = "sums.json", "damaged"


class Sequences:
    """A list of id sequences in two files: all ids end to end, and where each sequence ends."""

    def __init__(self, ids: Ids, ends: Ids) -> None:
        self.ids = ids
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])

    @classmethod
    def stored(cls, folder: Path, name: str) -> Sequences:
        """Those that a writer left under this name, mapped rather than read."""
        described = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return cls(_map(folder / f"{name}.ids", described["type"]), _map(folder / f"{name}.ends", "int64"))

    @classmethod
    def of(cls, sequences: list[list[int]]) -> Sequences:
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
            for file in (self._ids, self._ends):
                file.flush()
                os.fsync(file.fileno())
        described = {"type": self.type, "ids": self._written}
        (self.folder / f"{self.name}.json").write_text(json.dumps(described), encoding="utf-8")


def store_folder(key: dict[str, Any], root: Path | None = None) -> Path:
    """Where the store for this key lives: in the user's cache unless HEEDFUL_CACHE says otherwise."""
    base = root or Path(os.environ.get("HEEDFUL_CACHE") or Path.home() / ".cache" / "heedful")
    digest = hashlib.sha256(json.dumps({**key, "format": FORMAT}, sort_keys=True).encode()).hexdigest()
    return base / "stores" / digest[:24]


@contextmanager
def new_store(folder: Path) -> Iterator[Path]:
    """Write a store aside and rename it when whole; a failed one leaves nothing behind, one that was killed its folder
    until the next is written."""
    aside = folder.with_name(f"{folder.name}.{platform.node()}.{os.getpid()}.tmp")
    for left in folder.parent.glob(f"*.{platform.node()}.*.tmp"):
        if not _is_running(left.suffixes[-2].removeprefix(".")):
            shutil.rmtree(left, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        (aside / SUMS).write_text(json.dumps(_sums(aside)), encoding="utf-8")
        if not is_whole(folder):  # another run may have written the same store meanwhile
            if folder.exists():
                folder.rename(aside / DAMAGED)
            aside.rename(folder)
            shutil.rmtree(folder / DAMAGED, ignore_errors=True)
    except OSError as error:
        size = sum(file.stat().st_size for file in aside.glob("*"))
        raise HeedfulError(
            f"{folder}: the text's ids, {size:,} bytes and more, could not be written: {error}"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Whether the store is there, to the last bit as it was written: training on other text would not be noticed."""
    try:
        return bool(json.loads((folder / SUMS).read_text(encoding="utf-8")) == _sums(folder))
    except (OSError, ValueError, RecursionError):
        return False


def _sums(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, in a fraction of the time it takes to look at the text itself."""
    sums = {}
    for file in sorted(path for path in folder.iterdir() if path.name not in (SUMS, DAMAGED)):
        with file.open("rb") as stream:
            sums[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return sums


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):  # somebody else's; or none of ours
        pass
    return True


def _map(file: Path, kind: str) -> Ids:
    if file.stat().st_size == 0:
        raise DataError(f"{file} holds no tokens: everything was filtered out")
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))  # parts of a memmap are memmaps, which take twice as long
