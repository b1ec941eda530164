"""Lines from standard input: each as soon as it is complete, none lost, bad ones with their location."""

from __future__ import annotations

import os
from collections.abc import Iterator

from heedful.data.line_reader import BadLine, scan_stdin


def _piped(*writes: bytes, limit: int = 100) -> list[str | BadLine | None]:
    """The lines read from a pipe, into which these blocks are written, each read before the next."""
    reading, writing = os.pipe()
    lines = scan_stdin(reading, limit=limit)
    lines_read: list[str | BadLine | None] = []
    for block in writes:
        os.write(writing, block)
        lines_read += list(_until_pause(lines))
    os.close(writing)
    lines_read += list(lines)
    os.close(reading)
    return lines_read


def _until_pause(lines: Iterator[str | BadLine | None]) -> Iterator[str | BadLine | None]:
    for line in lines:
        yield line
        if line is None:
            return


def test_lines_are_yielded_as_soon_as_they_are_complete() -> None:
    assert _piped(b"one\ntwo\nth", b"ree\n", b"\n\nlast") == [
        "one\n", "two\n", None, "three\n", None, "\n", "\n", None, "last",
    ]  # fmt: skip


def test_empty_pipe_has_no_lines() -> None:
    assert _piped() == []


def test_crlf_and_byte_order_mark_are_removed() -> None:
    assert _piped(b"\xef\xbb\xbfone\r\ntwo\r\n") == ["one\n", "two\n", None]


def test_bad_lines_have_their_number_and_byte_offset() -> None:
    one, bad, three, *_, nul = _piped(b"one\nt\xffo\nthree\n", b"a\0b")
    assert (one, three) == ("one\n", "three\n")
    assert str(bad).startswith("standard input:2: byte offset 5: 0xff is not UTF-8")
    assert str(nul).startswith("standard input:4: byte offset 15: a NUL byte")


def test_overlong_line_is_skipped_in_bounded_memory() -> None:
    lines_read = [line for line in _piped(b"x" * 90, b"x" * 90, b"x" * 90 + b"\nnext\n", b"y" * 200 + b"\nend") if line]
    assert [str(line)[:60] for line in lines_read] == [
        "standard input:1: byte offset 0: the line is longer than 100",
        "next\n",
        "standard input:3: byte offset 276: the line is longer than 1",
        "end",
    ]


def test_lines_of_exactly_the_limit_are_accepted() -> None:
    assert _piped(b"z" * 100 + b"\n") == ["z" * 100 + "\n", None]
