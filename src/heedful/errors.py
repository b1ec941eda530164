"""Errors a user can cause. Each message says what is wrong, the value seen, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HeedfulError(Exception):
    """The base of every error meant for a person to read; `exit_code` is what the command returns."""

    exit_code = 1


class UsageError(HeedfulError, ValueError):
    """A setting, argument or input that cannot work."""

    exit_code = 2


class DataError(HeedfulError):
    """Text that cannot be read or used as it is."""

    exit_code = 3


class CheckpointError(HeedfulError):
    """A model folder that is missing, damaged or not one of ours."""

    exit_code = 4


class NonFiniteError(HeedfulError):
    """A loss or gradient that is no number, several steps in a row."""

    exit_code = 5


class OutOfMemoryError(HeedfulError):
    """More memory was asked for than there is; `batch_tokens` and `accumulate` are the settings it happened with."""

    def __init__(self, message: str, batch_tokens: int = 0, accumulate: int = 1) -> None:
        super().__init__(message)
        self.batch_tokens, self.accumulate = batch_tokens, accumulate


class StoppedError(HeedfulError):
    """The user asked to stop, and everything is saved; the exit code is the shell's for the signal: 130 or 143."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def nearest(word: str, options: Iterable[str]) -> str:
    """A hint for a misspelt name: the closest option, or all of them when nothing is close."""
    known = sorted(options)
    close = get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


def require_positive(**sizes: int | float | None) -> None:
    """Refuse a zero or negative size by its name; None means "take the default" and passes."""
    for name, size in sizes.items():
        if size is not None and size <= 0:
            raise UsageError(f"{name} must be positive, got {size}")
