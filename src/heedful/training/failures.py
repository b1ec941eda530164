"""What the machine can do to a run, in words a person can act on."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from heedful.errors import HeedfulError, OutOfMemoryError, StoppedError
from heedful.training.recipe import RECIPE

OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "can't start new thread",
)
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def readable_failures(settings: dict[str, Any], folder: Path | None = None) -> Iterator[None]:
    """Memory, disks and worker processes that give out become one line each, and so does being asked to stop where
    there is no step to finish; all other errors pass.

    `settings` are looked at when it happens: by then more may be decided than when training was asked for.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError, EOFError) as error:
        plain = _plain(error, settings.get("training", {}), folder)
        if plain is None:
            raise
        raise plain from None
    except (KeyboardInterrupt, SystemExit) as asked:
        begun = folder is not None and (folder / RECIPE).is_file()
        stopped = f"stopped; go on with: heedful train --resume {folder}" if begun else "stopped before the run began"
        code = 128 + signal.SIGINT if isinstance(asked, KeyboardInterrupt) else int(asked.code or 0)
        raise StoppedError(stopped, code - 128) from None


def _plain(error: Exception, training: dict[str, Any], folder: Path | None) -> HeedfulError | None:
    words = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in words for sign in OUT_OF_MEMORY_MESSAGES):
        return out_of_memory(training)
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        where = error.filename or folder or "a full disk"
        return HeedfulError(f"{where}: nothing more can be written: {error.strerror}")
    # Who asks a process that was killed gets one of the first two; torch notices a moment later.
    if (isinstance(error, ConnectionError | EOFError) and training.get("workers")) or "DataLoader worker" in words:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or torch says so once more, in the midst of whatever comes next
        first = (words.splitlines() or [type(error).__name__])[0].rstrip(".")
        return HeedfulError(
            f"a process that prepares batches is gone: {first} (training.workers={training['workers']}; "
            f"0 does without). Go on with: heedful train --resume {folder}"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return HeedfulError(f"{error.filename or folder or 'a file'}: {error.strerror}")
    return None


def out_of_memory(training: dict[str, Any]) -> OutOfMemoryError:
    """The error that names what to lower, as far as it is decided."""
    if "batch_tokens" not in training:
        return OutOfMemoryError("out of memory, and not for the size of batches: this needs a machine with more of it")
    tokens, accumulate = training["batch_tokens"], training.get("accumulate", 1)
    return OutOfMemoryError(
        f"out of memory with training.batch_tokens={tokens}: start again with {max(1, tokens // 2)} of them and "
        f"training.accumulate={2 * accumulate}, which learns from as much at each step; --auto-batch does so by itself",
        tokens,
        accumulate,
    )


MIN_BATCH_TOKENS = 64
"""Tokens of a batch that it is no use to halve."""


def with_smaller_batch(settings: dict[str, Any], error: OutOfMemoryError) -> dict[str, Any]:
    """Half the batch, twice as often before each step; an error when there is nothing left to halve."""
    if error.batch_tokens < MIN_BATCH_TOKENS:
        raise out_of_memory({})
    halved = {"batch_tokens": error.batch_tokens // 2, "accumulate": 2 * error.accumulate}
    return {**settings, "training": {**settings["training"], **halved}}
