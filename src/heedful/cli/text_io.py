"""Input and output of commands that answer each line of text with one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.cli.standard_streams import print_message, write_output
from heedful.errors import DataError, HeedfulError, UsageError, is_unicode
from heedful.files import atomic_file, is_device

if TYPE_CHECKING:
    from heedful.data.line_reader import BadLine
    from heedful.data.progress import ProgressCallback

OnBadLine = Literal["fail", "skip"]
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
MAX_WARNINGS = 20
"""Warnings printed; further ones are counted."""


class LineStream:
    """The lines to process, and where the result of each is written.

    Iterating gives the texts, else the lines of `file`, else those of standard input as they arrive; None says that no
    further line is waiting. A line that cannot be read is an error or, with `on_bad_line` "skip", an empty line.
    """

    def __init__(
        self, texts: list[str] | None, file: Path | None, output: Path | None, on_bad_line: OnBadLine = "fail"
    ) -> None:
        if texts and file is not None:
            raise UsageError(f"texts come from the command line or from --input {file}: give one or the other")
        if file is not None and output is not None and output.is_file() and file.exists() and output.samefile(file):
            raise UsageError(f"--output {output} is the input, which would be lost: name another file")
        for text in texts or ():
            if not is_unicode(text):
                raise UsageError(f"text {text!r:.60} is not valid UTF-8; a terminal in UTF-8 passes every character")
        self.texts, self.file, self.output, self.on_bad_line = texts, file, output, on_bad_line
        self.results = self.warnings = 0
        self.progress: ProgressCallback | None = None

    def __enter__(self) -> LineStream:
        with ExitStack() as stack:
            self.progress = stack.enter_context(_reading_progress(self.file, self.output))
            self._write_line = stack.enter_context(output_lines(self.output))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        suppressed = self._stack.__exit__(*error)
        if error[0] is None and self.warnings > MAX_WARNINGS:
            print_message(
                f"{self.warnings - MAX_WARNINGS:,} more warnings like these were not shown; --json has them all"
            )
        return suppressed

    def __iter__(self) -> Iterator[str | None]:
        from heedful.data.line_reader import scan_lines, scan_stdin, skip_hint

        if self.texts:
            yield from self.texts
            return
        scanned: Iterator[str | BadLine | None]
        if self.file is not None:
            scanned = scan_lines(self.file, progress=self.progress, once=True)
        else:
            scanned = scan_stdin(sys.stdin.fileno()) if sys.stdin is not None else iter(())
        number = 0
        for line in scanned:
            number += line is not None
            if line is None or isinstance(line, str):
                yield line if line is None else line.removesuffix("\n")
            elif self.on_bad_line == "fail":
                raise DataError(str(line))
            else:
                self.warn(number, f"left empty: {line.message.removesuffix(skip_hint()).rstrip()}")
                yield ""

    def write(self, result: str | dict[str, Any], warnings: Sequence[str] = (), *, whole: bool = False) -> None:
        """Write the next line's result, as text or JSON, and its warnings to standard error.

        Line breaks in a text become spaces, unless it is `whole`: the only result, and written as it is.
        """
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        self._write_line(text if whole else text.replace("\n", " "))
        self.results += 1
        for warning in warnings:
            self.warn(self.results, warning)

    def table_line(self, cells: Sequence[object], numbers: Sequence[str]) -> str:
        """Cells and a vector as one row: of CSV in a .csv, else with tabs (in a .tsv, between numbers too)."""
        suffixes = [] if self.output is None else [suffix.lower() for suffix in self.output.suffixes[-2:]]
        if ".csv" in suffixes:
            row = io.StringIO()
            csv.writer(row, lineterminator="").writerow([*cells, *numbers])
            return row.getvalue()
        return "\t".join([*map(str, cells), ("\t" if ".tsv" in suffixes else " ").join(numbers)])

    def warn(self, number: int, text: str) -> None:
        """Print a warning about a line, unless there were many already."""
        self.warnings += 1
        if self.warnings <= MAX_WARNINGS:
            print_message(f"line {number}: {text}")


@contextmanager
def output_lines(file: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line to standard output at once, or to a file that appears when complete.

    After an interruption, the lines so far are beside the file, under its name with ".part" before the suffix.
    """
    if file is None:
        yield lambda text: write_output(f"{text}\n")
        return
    if file.is_dir():
        raise UsageError(f"{file} is a folder; --output takes a file's name")
    partial = file.with_name(f"{file.stem}.part{file.suffix}")
    try:
        with atomic_file(file, partial=partial) as target, _open(target, "wb") as stream:
            yield lambda text: stream.write(f"{text}\n".encode())
    except OSError as error:
        raise HeedfulError(f"{file} cannot be written: {error.strerror}; {_partial_result(file, partial)}") from None
    except BaseException:
        print_message(_partial_result(file, partial))
        raise


def _partial_result(file: Path, partial: Path) -> str:
    """A message with the number of whole lines on the disk, which may be full and hold fewer than were written."""
    if is_device(file):
        return "the lines written cannot be counted"
    count = _complete_lines(partial)
    if not count:
        partial.unlink(missing_ok=True)
        return "nothing was written"
    return f"the first {count:,} lines are in {partial}"


def _complete_lines(file: Path) -> int:
    """Lines with a line break that can be read. Of a plain file, a cut line after them is removed."""
    count = size = 0
    compressed = file.suffix.lower() in COMPRESSED
    with suppress(OSError, EOFError, zlib.error, lzma.LZMAError), _open(file, "rb") as lines:
        for line in lines:
            count, size = count + line.endswith(b"\n"), size + (len(line) if line.endswith(b"\n") else 0)
    if count and not compressed:
        os.truncate(file, size)
    return count


def _open(path: Path, mode: str) -> Any:
    return COMPRESSED.get(path.suffix.lower(), open)(path, mode)


def _reading_progress(file: Path | None, output: Path | None) -> AbstractContextManager[Any]:
    """A progress bar over the input file's bytes, if input and output are files."""
    if file is None or output is None or not file.is_file():
        return nullcontext()
    from heedful.training.reporting.events import Events, terminal_listener

    return Events(terminal_listener()).stage("reading", file.stat().st_size)
