"""Failures of the machine during a run (memory, disk, worker processes), turned into one-line errors."""

from __future__ import annotations

import errno
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from heedful.errors import HeedfulError, OutOfMemoryError, StoppedError
from heedful.syntax import argument, call, settings_argument
from heedful.training.run_catalog import RECIPE_FILE

OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "can't start new thread",
)
SHARED_MEMORY_MESSAGES = ("Bus error", "/torch_", "shared memory", "(shm)")
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def readable_failures(settings: dict[str, Any], folder: Path | None = None) -> Iterator[None]:
    """Turn failures of memory, disk and worker processes, and interruptions between steps, into one-line errors.

    Other errors pass unchanged. `settings` are read when a failure occurs, when more of them may have been chosen.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError, EOFError, SafetensorError) as error:
        readable = _readable(error, settings.get("training", {}), folder)
        if readable is None:
            raise
        raise readable from None
    except (KeyboardInterrupt, SystemExit) as stop:
        started = folder is not None and (folder / RECIPE_FILE).is_file()
        message = f"stopped; resume with: {call('train', resume=folder)}" if started else "stopped before the run began"
        code = 128 + signal.SIGINT if isinstance(stop, KeyboardInterrupt) else int(stop.code or 0)
        raise StoppedError(message, code - 128) from None


def _readable(error: Exception, training: dict[str, Any], folder: Path | None) -> HeedfulError | None:
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(m in text for m in OUT_OF_MEMORY_MESSAGES):
        return out_of_memory(training)
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return HeedfulError(f"{error.filename or folder or 'a full disk'}: cannot write: {error.strerror}")
    # Reading from a killed worker raises one of these two before torch notices that it is gone.
    if (isinstance(error, ConnectionError | EOFError) and training.get("workers")) or "DataLoader worker" in text:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise the same error again later
        if any(message in text for message in SHARED_MEMORY_MESSAGES):
            return shared_memory_error(training["workers"], "is full", folder)
        reason = (text.splitlines() or [type(error).__name__])[0].rstrip(".")
        return HeedfulError(
            f"a DataLoader worker died: {reason}. Resume with: {call('train', resume=folder)} "
            f"(training.workers={training['workers']}; 0 needs no worker processes)"
        )
    if isinstance(error, SafetensorError):
        return HeedfulError(f"{folder or 'a model'} cannot be written: {error}")
    if isinstance(error, OSError) and error.errno is not None:
        return HeedfulError(f"{error.filename or folder or 'a file'}: {error.strerror}")
    return None


def shared_memory_error(workers: int, problem: str, folder: Path | None = None) -> HeedfulError:
    """Workers pass batches through /dev/shm, which is small in a container."""
    resume = "" if folder is None else f". Resume with: {call('train', resume=folder)}"
    return HeedfulError(
        f"shared memory (/dev/shm) {problem}: training.workers={workers} pass batches through it. Enlarge it "
        f"(docker run --shm-size=1g), or use {settings_argument({'training.workers': 0})}, which needs none{resume}"
    )


def check_shared_memory(workers: int) -> None:
    """Raise an error where worker processes cannot be given queues: torch's DataLoader would report a wrong file."""
    context, events = multiprocessing.get_context(), []
    try:
        queues = [context.Queue() for _ in range(workers + 1)]
        events += [context.Event() for _ in range(2 * workers + 1)]  # a little more than DataLoader makes of each
    except OSError as error:
        raise shared_memory_error(workers, f"cannot be used ({error.strerror})") from None
    for queue in queues:
        queue.close()


def out_of_memory(training: dict[str, Any]) -> OutOfMemoryError:
    """The error with the settings to lower, if they have been chosen."""
    if "batch_tokens" not in training:
        return OutOfMemoryError("out of memory, and smaller batches would not help: use a machine with more memory")
    tokens, accumulate = training["batch_tokens"], training.get("accumulate", 1)
    smaller = {"training.batch_tokens": max(1, tokens // 2), "training.accumulate": 2 * accumulate}
    return OutOfMemoryError(
        f"out of memory with training.batch_tokens={tokens}: use {settings_argument(smaller)} "
        f"(the same tokens per step), or {argument('auto_batch', True)}",
        tokens,
        accumulate,
    )


MIN_BATCH_TOKENS = 64
"""Batches below this size are not halved."""


def with_smaller_batch(settings: dict[str, Any], error: OutOfMemoryError) -> dict[str, Any]:
    """Halve the batch and double the accumulation; an error if the batch is already minimal."""
    if error.batch_tokens < MIN_BATCH_TOKENS:
        raise out_of_memory({})
    halved = {"batch_tokens": error.batch_tokens // 2, "accumulate": 2 * error.accumulate}
    return {**settings, "training": {**settings["training"], **halved}}
