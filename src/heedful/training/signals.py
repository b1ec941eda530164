"""Ctrl-C and its like: the first asks, the second commands."""

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
    """While it is entered, a first SIGINT or SIGTERM is only noted in `asked`; a second ends the program at once."""

    def __init__(self) -> None:
        self.received = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self.before = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise SystemExit(128 + number)
        self.received = number


@contextmanager
def sigterm_raises_exit() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, with all that is half-written taken away; a handler of the caller's
    stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unwind(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def ignore_stop_signals(worker: int) -> None:
    """For processes that prepare batches. Terminals send Ctrl-C, systemd and SLURM send SIGTERM to every process there
    is; but when to stop is up to the one that trains, which still needs its batches. What it sends itself is heeded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "darwin":  # who sent a signal cannot be asked there
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
