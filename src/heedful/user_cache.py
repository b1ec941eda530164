"""The user's cache folder, for files that can be recreated: encoded text and converted models."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

from heedful.errors import HeedfulError, UsageError


def cache_folder() -> Path:
    """HEEDFUL_CACHE, or else `heedful` in the platform's folder for caches."""
    if chosen := os.environ.get("HEEDFUL_CACHE"):
        return Path(chosen)
    try:
        default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except RuntimeError:
        raise UsageError("this user has no home folder for a cache; set HEEDFUL_CACHE to a folder") from None
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "heedful"


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can read and write; one that is a link or another user's is an error."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_own_folder(path):
            path.chmod(0o700)
            return path
    except OSError as error:
        raise HeedfulError(f"{path} cannot be used: {error.strerror}; set HEEDFUL_CACHE to another folder") from None
    raise HeedfulError(f"{path} is a link or another user's; set HEEDFUL_CACHE to a folder of your own")


def is_own_folder(path: Path) -> bool:
    """Whether `path` is a folder, not a link to one, and this user's."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def evict(folder: Path, limit: int, keep: Path) -> None:
    """Delete the least recently used entries of a cache, by their modification time, until it has `limit` bytes."""
    entries = [entry for entry in folder.iterdir() if entry != keep and entry.suffix != ".tmp"]
    total = _size(keep)
    for entry in sorted(entries, key=_last_used, reverse=True):
        total += _size(entry)
        if total > limit:
            shutil.rmtree(entry, ignore_errors=True)


def _last_used(entry: Path) -> float:
    try:
        return entry.lstat().st_mtime
    except OSError:
        return 0.0


def _size(entry: Path) -> int:
    try:
        return sum(file.lstat().st_size for file in entry.iterdir())
    except OSError:  # deleted meanwhile, or not a folder
        return 0
