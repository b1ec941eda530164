"""Read and write word vectors in the word2vec format, text and binary.

    2 3                      two words, three numbers each
    king 0.1 -0.2 0.3        text; or binary: "king ", then the numbers as 32-bit floats, then an optional line break

Hand-written because gensim would be a dependency for one format. Files are untrusted: memory is not allocated by what a
header claims. They may be gzipped.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from heedful.errors import CheckpointError, HeedfulError
from heedful.files import atomic_file

Table = npt.NDArray[np.float32]
MAX_WORD_BYTES = 1 << 12
MAX_WIDTH = 1 << 16
MAX_BYTES = 16 << 30


def read_word2vec(path: Path) -> tuple[list[str], Table]:
    """Read words and vectors from a text or binary file, plain or .gz."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    try:
        with _open(path) as stream:
            count, width = _header(path, stream)
            rows = _text_rows if _is_text(stream, width) else _binary_rows
            return _collect(path, rows(path, stream, count, width), count, width)
    except (OSError, EOFError, zlib.error) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def write_word2vec(path: Path, words: Sequence[str], table: Table, *, binary: bool = False) -> Path:
    """Write atomically; whitespace within words becomes underscores, as usual."""
    try:
        with atomic_file(path) as temporary, temporary.open("wb") as stream:
            stream.write(f"{len(words)} {table.shape[1]}\n".encode())
            for word, row in zip(words, table.astype("<f4"), strict=True):
                stream.write("_".join(word.split()).encode() + b" ")
                stream.write(row.tobytes() if binary else " ".join(f"{value:.6g}" for value in row.tolist()).encode())
                stream.write(b"\n")
    except OSError as error:
        raise HeedfulError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _open(path: Path) -> BufferedReader:
    with path.open("rb") as start:
        is_gzip = start.read(2) == b"\x1f\x8b"
    opener = gzip.open if is_gzip else open
    return BufferedReader(cast("RawIOBase", opener(path, "rb")), 1 << 20)


def _header(path: Path, stream: BufferedReader) -> tuple[int, int]:
    fields = stream.readline(100).split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        raise CheckpointError(
            f"{path} is neither a model folder nor a word2vec file: its first line must be two numbers, words and width"
        )
    count, width = int(fields[0]), int(fields[1])
    if not count or not 0 < width <= MAX_WIDTH:
        raise CheckpointError(f"{path} claims {count:,} words of {width:,} numbers: not a valid table")
    if 4 * count * width > MAX_BYTES:
        raise CheckpointError(f"{path} claims {4 * count * width >> 30:,} GiB of numbers: more than the limit")
    return count, width


def _is_text(stream: BufferedReader, width: int) -> bool:
    """Whether the first row is text."""
    first = stream.peek(1 << 16)[: 1 << 16].partition(b"\n")[0].split()
    try:
        return len(first) > width and all(np.isfinite(float(field)) for field in first[-width:])
    except ValueError:
        return False


def _text_rows(path: Path, stream: BufferedReader, count: int, width: int) -> Iterator[tuple[bytes, Table]]:
    longest = MAX_WORD_BYTES + 64 * width
    for number in range(count):
        line = stream.readline(longest)
        if not line.strip():
            return
        fields = line.split()
        try:
            row = np.array([float(field) for field in fields[-width:]], np.float32)
        except ValueError:
            row = np.empty(0, np.float32)
        if len(fields) <= width or len(row) != width:
            raise CheckpointError(f"{path}:{number + 2}: not a word and {width} numbers")
        yield b" ".join(fields[:-width]), row


def _binary_rows(path: Path, stream: BufferedReader, count: int, width: int) -> Iterator[tuple[bytes, Table]]:
    for _ in range(count):
        word = bytearray()
        while (character := stream.read(1)) not in (b" ", b""):
            if character != b"\n" or word:  # some writers end a vector with a line break
                word += character
            if len(word) > MAX_WORD_BYTES:
                raise CheckpointError(f"{path}: no word ends within {MAX_WORD_BYTES} bytes: not a word2vec file")
        numbers = stream.read(4 * width)
        if not character or len(numbers) < 4 * width:
            return
        yield bytes(word), np.frombuffer(numbers, "<f4")


def _collect(path: Path, rows: Iterator[tuple[bytes, Table]], count: int, width: int) -> tuple[list[str], Table]:
    words: list[str] = []

    def vectors() -> Iterator[Table]:
        for word, row in rows:
            words.append(word.decode("utf-8", errors="replace"))
            yield row

    table: Table = np.fromiter(vectors(), np.dtype((np.float32, (width,))))
    if len(words) < count:
        raise CheckpointError(f"{path} is truncated: it claims {count:,} words and holds {len(words):,}")
    if not np.isfinite(table).all():
        bad = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        raise CheckpointError(f"{path}: the vector of '{words[bad]}' contains a non-finite number")
    return words, table
