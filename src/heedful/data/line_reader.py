"""Lines of valid UTF-8 from a file (plain, .gz or .xz) or from standard input.

A line that cannot be used is yielded as a `BadLine` at its position, so that two files read in parallel stay aligned
and each caller decides whether to stop, skip or report. Memory is bounded by the block size and the line limit,
whatever the input holds: a 100 MB line and a .gz bomb are read in blocks.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from select import select
from typing import IO, Literal, NamedTuple

from heedful.data.progress import ProgressCallback
from heedful.errors import DataError
from heedful.syntax import argument

MAX_LINE = 1_000_000
"""Maximum bytes of a line, without its line end."""

MAX_FILE = 1 << 28
"""Maximum decompressed bytes of a file that is read into memory as a whole."""

BLOCK = 1 << 18
XZ_MEMORY = 256 << 20
"""Decompression memory: `xz -9` needs 65 MB; a hostile file could ask for 4 GB."""

BOM = b"\xef\xbb\xbf"
OnBadLine = Literal["fail", "skip"]
STDIN = Path("standard input")

MAGIC = {
    b"\x1f\x8b": "gzip data: name it .gz",
    b"\xfd7zXZ\0": "xz data: name it .xz",
    b"BZh": "bzip2 data: decompress it, or use .gz or .xz",
    b"\x28\xb5\x2f\xfd": "zstd data: decompress it, or use .gz or .xz",
    b"PK\x03\x04": "a zip archive or office document: save it as plain text",
    b"%PDF": "a PDF: save it as plain text",
    b"PAR1": "a parquet table: save it as .jsonl, .tsv or .csv",
    b"\x89PNG": "a picture",
    b"\xff\xfe": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
}
CONVERT_HINT = "convert text in another encoding with iconv, such as -f CP1252 -t UTF-8"
CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\v\b\x1b"))


class BadLine(NamedTuple):
    """A line or record that cannot be used, and why.

    Kinds: blank, utf-8, nul, overlong, malformed, misaligned; of questions also span.
    """

    kind: str
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def skip_hint() -> str:
    """How to leave out unreadable lines, for the end of a message."""
    return f"({argument('on_bad_line', 'skip')} leaves such lines out)"


def read_lines(
    path: Path,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield each valid line with its number, from 1; line ends become a plain newline."""
    for number, line in enumerate(scan_lines(path), 1):
        if isinstance(line, str):
            yield number, line
        else:
            handle_bad_line(line, on_bad_line, dropped)


def handle_bad_line(bad: BadLine, on_bad_line: OnBadLine, dropped: Counter[str] | None = None) -> None:
    """Raise at a bad line or count it. Blank lines never raise; misaligned files always do."""
    if bad.kind == "misaligned" or (on_bad_line == "fail" and bad.kind != "blank"):
        raise DataError(bad.message if bad.kind == "misaligned" else str(bad))
    if dropped is not None:
        dropped[bad.kind] += 1


def scan_lines(
    path: Path, *, limit: int = MAX_LINE, progress: ProgressCallback | None = None, once: bool = False
) -> Iterator[str | BadLine]:
    """Yield every line in order, the unusable ones as `BadLine`; CRLF and a byte order mark are removed.

    `once`: the file is read this one time, so it may be a pipe.
    """
    number = 1
    for offset, chunk in _whole_lines(read_blocks(path, min(BLOCK, limit), progress, once=once), limit):
        number += yield from _decode_chunk(path, chunk, number, offset, limit)
    if number == 1:
        raise DataError(f"{path} is empty")


def scan_stdin(handle: int, *, limit: int = MAX_LINE) -> Iterator[str | BadLine | None]:
    """Yield every line of a pipe or terminal as soon as it is complete, as `scan_lines` does.

    None is yielded whenever no input is waiting, before blocking for more.
    """

    def blocks() -> Iterator[bytes]:
        while True:
            if not select([handle], [], [], 0)[0]:
                yield b""
            block = os.read(handle, min(BLOCK, limit))
            if not block:
                return
            yield block

    number = 1
    for offset, chunk in _whole_lines(blocks(), limit):
        if chunk == b"":
            yield None
        else:
            number += yield from _decode_chunk(STDIN, chunk, number, offset, limit)


def read_text_file(
    path: Path, *, limit: int = MAX_FILE, progress: ProgressCallback | None = None, once: bool = False
) -> str:
    """Read a file that has to be parsed as a whole, such as JSON; never hold more than the limit."""
    parts, size = [], 0
    for block in read_blocks(path, BLOCK, progress, once=once):
        parts.append(block)
        size += len(block)
        if size > limit:
            raise DataError(f"{path} is longer than {limit:,} bytes (decompressed): split it, or convert it to .jsonl")
    if not size:
        raise DataError(f"{path} is empty")
    text = _decode_line(path, b"".join(parts).removeprefix(BOM), 1, 0)
    if isinstance(text, BadLine):
        raise DataError(str(text).removesuffix(f" {skip_hint()}"))
    return text


def _whole_lines(blocks: Iterator[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Recut blocks at line ends, with their offsets; None stands for a line over the limit. Empty blocks pass through.

    No block is longer than the limit, so only a line begun in an earlier block can exceed it.
    """
    offset, carry, skipping = 0, b"", False
    for block in blocks:
        if not block:
            yield offset, block
            continue
        first = block.find(b"\n") + 1
        if not skipping and len(carry) + (first - 1 if first else len(block)) > limit:
            yield offset, None
            offset, carry, skipping = offset + len(carry), b"", True
        if skipping:
            offset += first or len(block)
            if not first:
                continue
            block, skipping = block[first:], False
        last = block.rfind(b"\n") + 1
        if last:
            yield offset, carry + block[:last]
            offset, carry = offset + len(carry) + last, b""
        carry += block[last:]
    if carry:
        yield offset, carry


def _decode_chunk(
    path: Path, chunk: bytes | None, number: int, offset: int, limit: int
) -> Generator[str | BadLine, None, int]:
    """Yield the lines of a chunk, decoded at once if all are valid, else line by line; return how many there are."""
    if chunk is None:
        message = f"byte offset {offset}: the line is longer than {limit:,} bytes: break it up (fold -s)"
        yield BadLine("overlong", path, number, message)
        return 1
    if offset == 0 and chunk.startswith(BOM):
        chunk, offset = chunk[len(BOM) :], len(BOM)
    lines = chunk.count(b"\n") + (len(chunk) > 0 and not chunk.endswith(b"\n"))
    if b"\0" not in chunk:
        try:
            yield from io.StringIO(chunk.decode().replace("\r\n", "\n"), newline="\n")
            return lines
        except UnicodeDecodeError:
            pass
    for line in io.BytesIO(chunk):
        yield _decode_line(path, line, number, offset)
        number, offset = number + 1, offset + len(line)
    return lines


def _decode_line(path: Path, line: bytes, number: int, offset: int) -> str | BadLine:
    """Decode one line, which begins at this byte offset."""
    if (at := line.find(b"\0")) >= 0:
        return BadLine("nul", path, number, f"byte offset {offset + at}: a NUL byte {skip_hint()}")
    try:
        return line.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = f"0x{line[error.start]:02x}"
        message = f"byte offset {offset + error.start}: {byte} is not UTF-8: {CONVERT_HINT} {skip_hint()}"
        return BadLine("utf-8", path, number, message)


def read_blocks(
    path: Path, size: int, progress: ProgressCallback | None, *, binary: bool = False, once: bool = False
) -> Iterator[bytes]:
    """Yield the file's decompressed bytes, at most `size` at a time; every failure becomes a one-line DataError.

    Unless `binary`, a file that is not text is refused; unless `once`, so are pipes and devices, which end or wait for
    ever when they are read again.
    """
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder: a file is needed here")
        if not once and path.exists() and not path.is_file():
            raise DataError(f"{path} is a pipe or a device, and the text is read more than once: write it to a file")
        with path.open("rb") as raw:
            position = 0
            for number, block in enumerate(_decompress(raw, suffix, size)):
                if number == 0 and not binary:
                    _refuse_binary(path, block)
                if progress is not None:
                    progress(raw.tell() - position)
                    position = raw.tell()
                yield block
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(f"{path} is not a valid {suffix} file: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _decompress(raw: IO[bytes], suffix: str, size: int) -> Iterator[bytes]:
    if suffix == ".xz":
        yield from _decompress_xz(raw, size)
        return
    with gzip.GzipFile(fileobj=raw) if suffix == ".gz" else raw as file:
        while block := file.read(size):
            yield block


def _decompress_xz(raw: IO[bytes], size: int) -> Iterator[bytes]:
    """Decompress concatenated xz streams; `lzma.open` would do so without a memory limit."""
    data = raw.read(size)
    while data:
        stream = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        while not stream.eof:
            if stream.needs_input and not data and not (data := raw.read(size)):
                raise EOFError("unexpected end of file")
            if block := stream.decompress(data, size):
                yield block
            data = b""
        data = stream.unused_data.lstrip(b"\0") or raw.read(size).lstrip(b"\0")


def _refuse_binary(path: Path, start: bytes) -> None:
    """Raise for known binary formats by their first bytes, and for others by their control characters."""
    control = len(start) - len(start.translate(None, CONTROL))
    for magic, description in MAGIC.items():
        if control and start.startswith(magic):
            raise DataError(f"{path} is not plain text but {description}")
    nuls = max(start[0::2].count(0), start[1::2].count(0))
    if nuls > 16 and nuls == start.count(0) and control < 1.1 * nuls + 4:
        raise DataError(f"{path} is not plain text but perhaps UTF-16: convert it with iconv, for example -f UTF-16LE")
    if control > max(16, len(start) // 20):
        raise DataError(f"{path} looks like a binary file, not text")
    if start.count(b"\r") > 1 and b"\n" not in start:
        raise DataError(f"{path} ends its lines with carriage returns alone: convert them with tr '\\r' '\\n'")
