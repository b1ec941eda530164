"""Handle standard streams that cannot be written: closed, full, or with a narrow encoding."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from heedful.errors import HeedfulError

STREAMS = {"stdin": ("r", os.O_RDONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}
"""Standard streams by descriptor, and how the null device stands in for a closed one: input ends at once, writing
output fails, messages are discarded."""
BROKEN_PIPE = 141
"""Exit code when the reader of the output stops reading: 128 + SIGPIPE, as shells report it."""


def prepare_streams() -> None:
    """Replace characters that the terminal's encoding lacks by '?', and reopen closed streams.

    A closed descriptor would be given to the next file opened, and messages would be written into that file.
    """
    for descriptor, (name, (mode, flags)) in enumerate(STREAMS.items()):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="replace")


def write_output(text: str) -> None:
    """Write text to standard output at once, in UTF-8."""
    with checked_output():
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()


def flush_output() -> None:
    """Flush standard output; raise HeedfulError if that fails."""
    with checked_output():
        sys.stdout.flush()


@contextmanager
def checked_output() -> Iterator[None]:
    """Raise HeedfulError if standard output cannot be written inside the block.

    Exit quietly when its reader stops reading, as `| head` does.
    """
    try:
        yield
    except BrokenPipeError:
        discard_output()
        raise SystemExit(BROKEN_PIPE) from None
    except OSError as error:
        discard_output()
        raise HeedfulError(f"standard output cannot be written: {error.strerror}") from None


def discard_output() -> None:
    """Discard what is still buffered for standard output: Python would try again when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_message(text: Any) -> None:
    """Print a line to standard error, unless that is closed or full."""
    with suppress(OSError):
        print(f"heedful: {text}", file=sys.stderr, flush=True)
