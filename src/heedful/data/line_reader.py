"""Bytes become text here and nowhere else: a file, plain or .gz or .xz, as lines of sound UTF-8.

A line that cannot be used comes out as a `Fault`, in its place, so that two files read side by side stay
side by side and each reader decides for itself whether to stop, to skip or to tell. Memory is bounded by
the block and the line limit, whatever the file holds: a 100 MB line and a .gz bomb are read in blocks.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple

from heedful.errors import DataError

MAX_LINE = 1_000_000
"""Bytes a line may have, its line end not counted."""

MAX_FILE = 1 << 28
"""Bytes, unpacked, of a file that is held in memory as a whole."""

BLOCK = 1 << 18
XZ_MEMORY = 256 << 20
"""`xz -9` asks for 65 MB; a hostile file could ask for 4 GB."""

BOM = b"\xef\xbb\xbf"
OnBadLine = Literal["fail", "skip"]
ProgressCallback = Callable[[int], object]
"""Told the number of bytes just taken from the disk, for a progress bar."""

MAGIC = {
    b"\x1f\x8b": "gzip data: name it .gz",
    b"\xfd7zXZ\0": "xz data: name it .xz",
    b"BZh": "bzip2 data: unpack it, or pack it as .gz or .xz",
    b"\x28\xb5\x2f\xfd": "zstd data: unpack it, or pack it as .gz or .xz",
    b"PK\x03\x04": "a zip archive or office document: save it as plain text",
    b"%PDF": "a PDF: save it as plain text",
    b"PAR1": "a parquet table: save it as .jsonl, .tsv or .csv",
    b"\x89PNG": "a picture",
    b"\xff\xfe": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
}
CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\v\b\x1b"))


class BadLine(NamedTuple):
    """A line that cannot be used: blank, utf-8, nul, overlong, malformed or misaligned."""

    kind: str
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def read_lines(
    path: Path,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    limit: int = MAX_LINE,
) -> Iterator[tuple[int, str]]:
    """Every sound line with its number, from 1; its line end is kept, as a plain newline."""
    for number, line in enumerate(scan_lines(path, limit=limit), 1):
        if isinstance(line, str):
            yield number, line
        else:
            handle_bad_line(line, on_bad_line, dropped)


def handle_bad_line(fault: BadLine, on_bad_line: OnBadLine, dropped: Counter[str] | None) -> None:
    """Stop at a bad line or count it. A blank one is no reason to stop; misaligned files always are."""
    if fault.kind == "misaligned" or (on_bad_line == "fail" and fault.kind != "blank"):
        raise DataError(fault.message if fault.kind == "misaligned" else str(fault))
    if dropped is not None:
        dropped[fault.kind] += 1


def scan_lines(path: Path, *, limit: int = MAX_LINE, progress: ProgressCallback | None = None) -> Iterator[str | BadLine]:
    """Every line in order, the bad ones as faults; CRLF and a byte order mark leave no trace."""
    number = 1
    for offset, chunk in _whole_lines(_blocks(path, min(BLOCK, limit), progress), limit):
        if chunk is None:
            what = f"byte offset {offset}: the line is longer than {limit:,} bytes: break it up (fold -s)"
            yield BadLine("overlong", path, number, what)
            number += 1
            continue
        skip = len(BOM) if offset == 0 and chunk.startswith(BOM) else 0
        yield from _decoded(path, chunk[skip:], number, offset + skip)
        number += chunk.count(b"\n") + (not chunk.endswith(b"\n") and len(chunk) > skip)
    if number == 1:
        raise DataError(f"{path} is empty")


def read_text_file(path: Path, *, limit: int = MAX_FILE, progress: ProgressCallback | None = None) -> str:
    """All of a file that makes sense only as a whole, such as JSON; no more than the limit is ever held."""
    parts, size = [], 0
    for block in _blocks(path, BLOCK, progress):
        parts.append(block)
        size += len(block)
        if size > limit:
            raise DataError(f"{path} is longer than {limit:,} bytes, unpacked: split it, or make it .jsonl")
    if not size:
        raise DataError(f"{path} is empty")
    text = decode_line(path, b"".join(parts).removeprefix(BOM), 1, 0)
    if isinstance(text, BadLine):
        raise DataError(str(text).removesuffix(f" {SKIP_HINT}"))
    return text


def _whole_lines(blocks: Iterator[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Blocks recut at line ends, with their offsets; None stands for one line over the limit.

    No block is longer than the limit, so only a line begun in an earlier block can pass it.
    """
    offset, carry, passing = 0, b"", False
    for block in blocks:
        first = block.find(b"\n") + 1
        if not passing and len(carry) + (first - 1 if first else len(block)) > limit:
            yield offset, None
            offset, carry, passing = offset + len(carry), b"", True
        if passing:
            offset += first or len(block)
            if not first:
                continue
            block, passing = block[first:], False
        last = block.rfind(b"\n") + 1
        if last:
            yield offset, carry + block[:last]
            offset, carry = offset + len(carry) + last, b""
        carry += block[last:]
    if carry:
        yield offset, carry


def _decoded(path: Path, chunk: bytes, number: int, offset: int) -> Iterator[str | BadLine]:
    """The lines of a chunk: all at once when it is sound, as nearly all text is, one by one when not."""
    if b"\0" not in chunk:
        try:
            yield from io.StringIO(chunk.decode().replace("\r\n", "\n"), newline="\n")
            return
        except UnicodeDecodeError:
            pass
    for line in io.BytesIO(chunk):
        yield decode_line(path, line, number, offset)
        number, offset = number + 1, offset + len(line)


SKIP_HINT = "(--on-bad-line skip leaves such lines out)"


def decode_line(path: Path, line: bytes, number: int, offset: int) -> str | BadLine:
    """One line, which begins at this offset, as text or as what is wrong with it."""
    if (at := line.find(b"\0")) >= 0:
        return BadLine("nul", path, number, f"byte offset {offset + at}: a NUL byte {SKIP_HINT}")
    try:
        return line.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = f"0x{line[error.start]:02x}"
        return BadLine("utf-8", path, number, f"byte offset {offset + error.start}: {byte} is not UTF-8 {SKIP_HINT}")


def _blocks(path: Path, size: int, progress: ProgressCallback | None) -> Iterator[bytes]:
    """The file's bytes, unpacked, at most `size` at a time; whatever is wrong with the file is one clear line."""
    packing = path.suffix.lower()
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder: a file is needed here")
        with path.open("rb") as raw:
            before = 0
            for number, block in enumerate(_unpacked(raw, packing, size)):
                if number == 0:
                    _refuse_binary(path, block)
                if progress is not None:
                    now = raw.tell()
                    progress(now - before)
                    before = now
                yield block
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(f"{path} is not a sound {packing} file: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _unpacked(raw: IO[bytes], packing: str, size: int) -> Iterator[bytes]:
    if packing == ".xz":
        yield from _unxz(raw, size)
        return
    with gzip.GzipFile(fileobj=raw) if packing == ".gz" else raw as file:
        while block := file.read(size):
            yield block


def _unxz(raw: IO[bytes], size: int) -> Iterator[bytes]:
    """What `lzma.open` does, streams one after another, but with a limit on memory."""
    data = raw.read(size)
    while data:
        stream = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        while not stream.eof:
            if stream.needs_input and not data and not (data := raw.read(size)):
                raise EOFError("it ends too early")
            if block := stream.decompress(data, size):
                yield block
            data = b""
        data = stream.unused_data.lstrip(b"\0") or raw.read(size).lstrip(b"\0")


def _refuse_binary(path: Path, start: bytes) -> None:
    """Known file types by their first bytes; others by control characters, which text hardly ever holds."""
    control = len(start) - len(start.translate(None, CONTROL))
    for magic, what in MAGIC.items():
        if control and start.startswith(magic):
            raise DataError(f"{path} is not plain text but {what}")
    if control > max(16, len(start) // 20):
        raise DataError(f"{path} looks like a binary file, not text")
