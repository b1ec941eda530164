"""Lines from a pipe or a terminal, each as soon as it is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from select import select

from heedful.data.line_reader import BLOCK, BOM, MAX_LINE, BadLine, decode_line

NAME = Path("standard input")


def scan_stdin(handle: int, *, limit: int = MAX_LINE) -> Iterator[str | BadLine | None]:
    """Every line in order, the bad ones as faults; None whenever no more are waiting, before waiting for them."""
    carry, number, offset, passing = b"", 1, 0, False
    while True:
        if not select([handle], [], [], 0)[0]:
            yield None
        block = os.read(handle, BLOCK)
        *lines, rest = (carry + block).split(b"\n")
        for line in lines:
            if passing:
                passing = False
            else:
                yield _line(line, number, offset, limit)
            number, offset = number + 1, offset + len(line) + 1
        if not block:
            break
        if not passing and len(rest) > limit:
            yield _line(rest, number, offset, limit)
            passing = True
        if passing:
            offset, rest = offset + len(rest), b""
        carry = rest
    if rest and not passing:
        yield _line(rest, number, offset, limit)


def _line(line: bytes, number: int, offset: int, limit: int) -> str | BadLine:
    if len(line) > limit:
        return BadLine("overlong", NAME, number, f"the line is longer than {limit:,} bytes: break it up (fold -s)")
    if offset == 0 and line.startswith(BOM):
        line, offset = line[len(BOM) :], len(BOM)
    return decode_line(NAME, line + b"\n", number, offset)
