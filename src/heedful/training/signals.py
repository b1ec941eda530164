"""SIGINT and SIGTERM during training: the first one stops after the current step, the second at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Within its block, the first SIGINT or SIGTERM is stored in `received`; a second one exits at once."""

    def __init__(self) -> None:
        self.received = 0
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            self.previous = {number: signal.signal(number, self.handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise SystemExit(128 + number)
        self.received = number


@contextmanager
def sigterm_raises_exit() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that temporary files are removed; a handler of the caller is left in place."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def ignore_stop_signals(worker: int) -> None:
    """Initialize a DataLoader worker: it ignores stop signals unless the trainer sends them.

    Terminals send Ctrl-C, and systemd and SLURM send SIGTERM, to every process of the group; but the trainer still
    needs the batches of the current step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "darwin":  # which has no sigwaitinfo to tell the sender
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()


def _exit_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
