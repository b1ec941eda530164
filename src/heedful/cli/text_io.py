"""What commands that answer texts share: where texts come from, where answers go, and what is said on the side."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import DataError, HeedfulError, UsageError
from heedful.files import atomic_file

if TYPE_CHECKING:
    from heedful.data.line_reader import BadLine
    from heedful.data.progress import ProgressCallback

OnBadLine = Literal["fail", "skip"]
SHOWN = 20
"""Warnings printed one by one; the rest is counted."""


class Notes:
    """Warnings on standard error, each with its line."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, line: int, text: str) -> None:
        self.count += 1
        if self.count <= SHOWN:
            say(f"line {line}: {text}")

    def close(self) -> None:
        if self.count > SHOWN:
            say(f"{self.count - SHOWN:,} more warnings like these were not shown; --json has them all")


def say(text: str) -> None:
    print(f"heedful: {text}", file=sys.stderr, flush=True)


def lines_of(
    texts: list[str] | None, file: Path | None, on_bad_line: OnBadLine, notes: Notes, watch: ProgressCallback | None = None
) -> Iterator[str | None]:
    """The arguments, or the file's lines, or those of standard input as they come.

    A line that cannot be read is no reason to lose count: skipped, it gives an empty one.
    """
    from heedful.data.line_reader import SKIP_HINT, scan_lines
    from heedful.data.line_reader import scan_stdin

    if texts:
        yield from texts
        return
    scanned: Iterator[str | BadLine | None]
    if file is not None:
        scanned = scan_lines(file, progress=watch)
    else:
        scanned = scan_stdin(sys.stdin.fileno()) if sys.stdin is not None else iter(())
    number = 0
    for line in scanned:
        number += line is not None
        if line is None or isinstance(line, str):
            yield line if line is None else line.removesuffix("\n")
        elif on_bad_line == "fail":
            raise DataError(str(line))
        else:
            notes(number, f"left empty: {line.message.removesuffix(SKIP_HINT).rstrip()}")
            yield ""


@contextmanager
def answers_to(file: Path | None) -> Iterator[Any]:
    """A function that writes one answer as one line: to standard output at once, or to a file that appears when whole.

    What was done before an interruption stays beside the file, under its name with ".part" before the ending.
    """
    if file is None:
        with piped():
            yield lambda text: _write(sys.stdout.buffer, text)
        return
    if file.is_dir():
        raise UsageError(f"{file} is a folder; give --output a file's name")
    aside = file.with_name(f"{file.stem}.part{file.suffix}")
    done = 0

    def write(text: str) -> None:
        nonlocal done
        _write(stream, text, flush=False)
        done += 1

    try:
        with atomic_file(file, partial=aside), _opened(aside) as stream:
            yield write
    except OSError as error:
        raise HeedfulError(f"{file} cannot be written: {error.strerror}; {_kept(aside, done)}") from None
    except BaseException:
        say(_kept(aside, done))
        raise


def _kept(aside: Path, done: int) -> str:
    if not done:
        aside.unlink(missing_ok=True)
        return "nothing was written"
    return f"the {done:,} lines done are in {aside}"


def _opened(path: Path) -> Any:
    packed: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    return packed.get(path.suffix.lower(), open)(path, "wb")


def _write(stream: Any, text: str, *, flush: bool = True, end: str = "\n") -> None:
    """One line: what is inside it must not break it."""
    stream.write((text.replace("\n", " ") + end).encode())
    if flush:
        stream.flush()


@contextmanager
def piped() -> Iterator[None]:
    """Whoever reads our output may stop at any time (`| head`): then we stop, too, without a word."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still held goes nowhere
        raise SystemExit(141) from None  # 128 + SIGPIPE, as the shell counts


def progress(file: Path | None, output: Path | None) -> Any:
    """A bar over a file that is read into another, once it keeps a person waiting."""
    if file is None or output is None or not file.is_file():
        return nullcontext()
    from heedful.training.reporting.events import Events, terminal_listener

    return Events(terminal_listener()).stage("reading", file.stat().st_size)
