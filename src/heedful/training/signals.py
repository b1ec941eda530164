"""Ctrl-C and its like: the first asks, the second commands."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While it is entered, a first SIGINT or SIGTERM is only noted in `asked`; a second ends the program at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self.before = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise SystemExit(128 + number)
        self.asked = number
