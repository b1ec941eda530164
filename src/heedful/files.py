"""Atomic writes and checksums: a file or folder appears under its name complete, or not at all.

Content is written under a temporary name beside the target, flushed to disk (fsync), then renamed. A manifest holds the
size and SHA-256 of each file of a folder, because safetensors loads a flipped bit without an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from heedful.errors import CheckpointError, UsageError
from heedful.untrusted_files import open_regular, parse_json_object, read_bounded

MANIFEST = "manifest.json"
REPLACED = "replaced.tmp"
MAX_MANIFEST_BYTES = 4 << 20
"""Enough for some 30,000 files."""


class Checksum(NamedTuple):
    """Size and SHA-256 of a file, as a manifest holds them."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Checksum:
        return cls(len(content), hashlib.sha256(content).hexdigest())


def fsync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_device(path: Path) -> bool:
    """Whether this is a device or pipe, such as /dev/null."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def atomic_file(path: Path, *, partial: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; on success fsync it and rename it to `path`.

    On an error the temporary file is removed. A `partial` path named by the caller is used instead and kept on error.
    A device or pipe is written directly: a rename would put a file in its place.
    """
    if is_device(path):
        yield path
        return
    temporary = partial or path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
        fsync(temporary)
        temporary.replace(path)
    finally:
        if partial is None:
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically; text is encoded as UTF-8."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to write to; on success fsync its files and rename it to `path`, replacing it."""
    with temporary_folder(path) as temporary:
        yield temporary
        for file in temporary.rglob("*"):
            fsync(file)
        commit_folder(temporary, path)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path` to write to; on exit it is removed unless it was renamed meanwhile.

    Its name holds this process's id, so that `remove_abandoned` recognizes the folders of killed processes.
    """
    remove_abandoned(path.parent, path.name)
    temporary = path.with_name(f"{path.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def commit_folder(temporary: Path, path: Path) -> None:
    """Rename a completed folder to `path` and fsync it and its parent.

    An existing folder is renamed into the new one before it is deleted: a kill never leaves half of it under `path`.
    """
    fsync(temporary)
    if path.exists():
        path.rename(temporary / REPLACED)
    temporary.rename(path)
    fsync(path.parent)
    shutil.rmtree(path / REPLACED, ignore_errors=True)


def remove_abandoned(parent: Path, name: str | None = None) -> None:
    """Remove temporary folders that killed processes of this host left in `parent`: of one target name, or all."""
    for folder in parent.glob("*.tmp"):
        target, _, owner = folder.stem.partition(f".{platform.node()}.")
        if owner.isdigit() and name in (None, target) and not _is_running(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process; not a process id
        pass
    return True


def require_empty(folder: Path) -> None:
    """Raise UsageError unless `folder` is missing or an empty folder."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty; choose another folder")


def write_manifest(folder: Path, names: Iterable[str], known: Mapping[str, Checksum] | None = None) -> None:
    """Write manifest.json with the checksums of these files, and fsync them and it.

    `known`: checksums of further files that are on disk already.
    """
    checksums = {name: checksum_of(folder / name) for name in names}
    (folder / MANIFEST).write_text(_manifest_text({**(known or {}), **checksums}), encoding="utf-8")
    for name in (*checksums, MANIFEST):
        fsync(folder / name)


def write_listed(file: Path, content: str) -> None:
    """Write a file atomically and, where its folder has a manifest, list it there."""
    write_atomic(file, content)
    if (file.parent / MANIFEST).exists():
        with suppress(CheckpointError):  # another program's manifest.json
            entries = {**read_manifest(file.parent), file.name: Checksum.of(content.encode())}
            write_atomic(file.parent / MANIFEST, _manifest_text(entries))


def _manifest_text(entries: Mapping[str, Checksum]) -> str:
    return json.dumps({name: checksum._asdict() for name, checksum in entries.items()}, indent=2) + "\n"


def read_manifest(folder: Path) -> dict[str, Checksum]:
    """Read manifest.json: the checksum of each file it lists."""
    try:
        entries = parse_json_object(read_bounded(folder / MANIFEST, MAX_MANIFEST_BYTES), folder / MANIFEST)
        if any(Path(name).name != name for name in entries):
            raise ValueError("a name with a folder")
        manifest = {name: Checksum(entry["size"], entry["sha256"]) for name, entry in entries.items()}
        if not all(type(size) is int and isinstance(sha256, str) for size, sha256 in manifest.values()):
            raise TypeError("a size that is not a number, or a checksum that is not text")
        return manifest
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        raise CheckpointError(f"{folder / MANIFEST} is missing or damaged; the folder cannot be verified") from None


def verify_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise CheckpointError unless these files (default: all in the manifest) exist with their size and SHA-256."""
    manifest = read_manifest(folder)
    listed = manifest.keys() if names is None else [*names]
    if any(name not in manifest for name in listed):
        raise CheckpointError(f"{folder / MANIFEST} is missing or damaged; the folder cannot be verified")
    expected = {folder / name: manifest[name] for name in listed}
    for file in expected:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
    with ThreadPoolExecutor() as pool:  # hashlib releases the GIL: shards of a large checkpoint are hashed in parallel
        list(pool.map(verify_file, expected.keys(), expected.values()))


def verify_file(file: Path, expected: Checksum, content: bytes | None = None) -> None:
    """Raise CheckpointError unless a file, or its `content` if that has been read, has this size and SHA-256."""
    size = file.stat().st_size if content is None else len(content)
    if size != expected.size:
        raise CheckpointError(f"{file} has {size} bytes, its manifest says {expected.size}")
    if (checksum_of(file) if content is None else Checksum.of(content)) != expected:
        raise CheckpointError(f"{file} is damaged: its SHA-256 differs from the manifest's")


def checksum_of(file: Path) -> Checksum:
    """SHA-256 of a file's bytes."""
    with open_regular(file) as stream:
        return Checksum(file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())
