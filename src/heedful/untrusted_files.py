"""Read untrusted files: only regular files of a bounded size, and JSON without repeated keys.

A model folder may hold a device file that never ends, a FIFO that blocks, a link to either, or JSON in which a second
entry replaces the first. Each is an error before anything is built.
"""

from __future__ import annotations

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from heedful.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20
"""Twice the largest tokenizer.json in common use (256,000 tokens: 33 MB)."""


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file, or a link to one; a device, FIFO or folder is an error, and never blocks."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{file} cannot be read: it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bounded(file: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes; a missing one raises FileNotFoundError."""
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(limit + 1) if size <= limit else b""
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    if max(size, len(content)) > limit:
        raise CheckpointError(f"{file} is too large: more than {limit:,} bytes")
    return content


def parse_json(content: bytes | str) -> Any:
    """Parse JSON in which no object has a key twice; ValueError or RecursionError if it cannot be read."""
    return json.loads(content, object_pairs_hook=_without_repeated_keys)


def parse_json_object(content: bytes | str, file: Path) -> dict[str, Any]:
    """Parse a JSON object; invalid JSON, anything but an object, or a repeated key is an error that names the file."""
    try:
        parsed = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{file} must hold a JSON object")
    return parsed


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {repeated!r:.60} appears twice")
    return result
