"""Signs of life: a process that no longer answers ends the run with its name, instead of a wait without end.

A thread of each process leaves a new number with the store every so often. The first process looks at all others, the
others at the first. What they wait *for* may take hours: only silence is a fault.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from heedful.errors import HeedfulError, UsageError

TIMEOUT = "HEEDFUL_TIMEOUT"
PATIENCE = 120.0
"""Seconds of silence, unless the environment says otherwise."""
BEATS = 5
"""In that time."""
WARN_AFTER = 10.0
"""Seconds for others to come, before it is told that they are waited for."""
LOST = "lost"


def patience() -> float:
    said = os.environ.get(TIMEOUT, str(PATIENCE))
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(f"{TIMEOUT} is a number of seconds, not '{said}'")
    return seconds


class Pulse:
    """This process's signs of life, and an ear for those of others."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.patience = patience()
        self.others = [other for other in range(size) if other != rank] if rank == 0 else [0]
        self.over = threading.Event()
        self.unheard = 0
        """Beats since the store last answered."""
        self.threads = [
            threading.Thread(target=work, name="pulse", daemon=True) for work in (self._listen, self._mind_the_store)
        ]

    def roll_call(self, seconds: float) -> None:
        """Wait until all have come; say who has not. By asking again and again: Ctrl-C would have to wait, too, for an
        answer that is long in coming."""
        self._beat(0)
        names = [_name(rank) for rank in range(self.size)]
        start, warned = time.monotonic(), self.rank > 0
        while not self.store.check(names):
            waited = time.monotonic() - start
            if waited > seconds:
                missing = f"of {self.size} processes, {self._missing(names)} did not come within {seconds:.0f} s"
                raise HeedfulError(f"{missing}: srun or torchrun starts them all")
            if waited > WARN_AFTER and not warned:
                warned = True
                missing = f"{self._missing(names)} of {self.size} processes"
                print(f"waiting for {missing}: srun or torchrun starts them all", file=sys.stderr)
            time.sleep(min(1.0, 0.02 + waited / 10))
        self.store.set_timeout(timedelta(seconds=self.patience))

    def _missing(self, names: list[str]) -> str:
        return f"rank {', '.join(str(rank) for rank, name in enumerate(names) if not self.store.check([name]))}"

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(self.patience)

    def _beat(self, number: int) -> None:
        self.store.set(_name(self.rank), f"{socket.gethostname()} {number}")

    def _listen(self) -> None:
        heard = {other: (b"", time.monotonic()) for other in self.others}
        number = 0
        while not self.over.wait(self.patience / BEATS):
            number += 1
            try:
                self._beat(number)
                if self.store.check([LOST]):
                    _end(self.store.get(LOST).decode())
                said = self.store.multi_get([_name(other) for other in self.others])
            except (dist.DistError, RuntimeError):
                _end(self._store_is_gone())
            self.unheard = 0
            now = time.monotonic()
            for other, sign in zip(self.others, said, strict=True):
                if sign != heard[other][0]:
                    heard[other] = (sign, now)
            silent = {other: sign for other, (sign, since) in heard.items() if now - since > self.patience}
            if silent:
                self._report(silent)

    def _mind_the_store(self) -> None:
        """Its keeper may fall silent, too, and then asking it has no end. Beats are counted, not seconds: a process
        that was itself asleep must not blame another."""
        while not self.over.wait(self.patience / BEATS):
            self.unheard += 1
            if self.unheard > BEATS + 1:
                _end(self._store_is_gone())

    def _store_is_gone(self) -> str:
        return (
            f"rank {self.rank}: nobody has answered where processes meet for {self.patience:g} s ({TIMEOUT}): "
            "rank 0 or the launcher beside it is gone; what is saved can be gone on with: heedful train --resume"
        )

    def _report(self, silent: dict[int, bytes]) -> None:
        """Tell the others, give them the time to hear it, and end."""
        who = ", ".join(f"rank {rank} on {sign.decode().partition(' ')[0]}" for rank, sign in silent.items())
        words = (
            f"{who} has not answered for {self.patience:g} s ({TIMEOUT}): the run ends here; what is saved can be "
            "gone on with: heedful train --resume"
        )
        self.store.set(LOST, words)
        time.sleep(2 * self.patience / BEATS)
        _end(words)


def _name(rank: int) -> str:
    return f"pulse/{rank}"


def _end(words: str) -> None:
    """At once: the thread that trains waits for one who will not come, and cannot be woken."""
    print(f"heedful: {words}", file=sys.stderr, flush=True)
    os._exit(1)
