"""Errors that users can cause. A message says what is wrong, the value seen, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HeedfulError(Exception):
    """Base of all errors with a message for users; `exit_code` is the command's."""

    exit_code = 1


class UsageError(HeedfulError, ValueError):
    """An invalid setting, argument or input."""

    exit_code = 2


class DataError(HeedfulError):
    """Training or evaluation data that cannot be read or used."""

    exit_code = 3


class CheckpointError(HeedfulError):
    """A model folder or checkpoint that is missing, damaged or of an unknown format."""

    exit_code = 4


class NonFiniteError(HeedfulError):
    """NaN or infinite loss or gradients, several steps in a row."""

    exit_code = 5


class OutOfMemoryError(HeedfulError):
    """Out of memory; `batch_tokens` and `accumulate` are the settings it happened with."""

    def __init__(self, message: str, batch_tokens: int = 0, accumulate: int = 1) -> None:
        super().__init__(message)
        self.batch_tokens, self.accumulate = batch_tokens, accumulate


class StoppedError(HeedfulError):
    """Interrupted by a signal after saving; exit code 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def nearest(word: str, options: Iterable[str]) -> str:
    """A hint for a misspelled name: the closest of `options`, or all of them if none is close."""
    known = sorted(options)
    close = get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


def is_unicode(text: str) -> bool:
    """Whether the text can be encoded as UTF-8. Arguments that are not UTF-8 hold surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_positive(**sizes: int | float | None) -> None:
    """Raise UsageError for a size that is not positive, by its name; None (the default) passes."""
    for name, size in sizes.items():
        if size is not None and size <= 0:
            raise UsageError(f"{name} must be positive, got {size}")
