"""Key-value store through which ranks find, wait for and name each other.

Collectives of torch end with an error after a time-out, but do not say which rank was missing, and they cannot wait
for work that takes one rank hours. Such waits go through this store, which rank 0 hosts: while the store answers,
rank 0 is alive, however long it reads, evaluates or writes; the other ranks show it by a heartbeat.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from heedful.errors import HeedfulError, UsageError
from heedful.syntax import call
from heedful.training.distributed.rank import RankInfo

TIMEOUT_VARIABLE = "HEEDFUL_TIMEOUT"
DEFAULT_TIMEOUT = 600.0
"""Seconds a collective may take: torch's own default for NCCL."""
JOIN_TIMEOUT = 300.0
"""Seconds for all ranks to join: the nodes of a cluster do not start at the same time."""
WARN_AFTER = 10.0
"""Seconds after which rank 0 prints which ranks have not joined yet."""
WORK_TIMEOUTS = 12
"""Time-outs that a live rank may spend on its share of longer work, such as reading data or writing a checkpoint."""
HEARTBEATS = 10
"""Heartbeats of a rank within a time-out."""
REPORT_TIMEOUT = 5.0
"""Maximum seconds for the surviving ranks to report themselves after a collective has failed."""

T = TypeVar("T")


class LostRankError(HeedfulError):
    """A rank of the process group died or stopped answering."""


def collective_timeout() -> float:
    """Seconds that a rank may keep the others waiting, from the environment."""
    text = os.environ.get(TIMEOUT_VARIABLE, str(DEFAULT_TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(f"{TIMEOUT_VARIABLE} must be a positive number of seconds, got '{text}'")
    return seconds


class RankStore:
    """One rank's client of the store. Every call ends: with a value, or with an error that names the missing ranks."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.timeout = collective_timeout()
        self.rounds = 0
        self._closed = threading.Event()

    def join(self, seconds: float = JOIN_TIMEOUT) -> None:
        """Wait until all ranks have joined."""
        self.set(f"host/{self.rank}", socket.gethostname().encode())
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        keys, remedy = self._keys("host"), "start all of them with srun or torchrun"
        if self.rank == 0 and (missing := self._wait(keys, min(seconds, WARN_AFTER))):
            print(f"waiting for {missing} of {self.size} ranks: {remedy}", file=sys.stderr)
        if missing := self._wait(keys, seconds):
            raise HeedfulError(f"{missing} of {self.size} ranks did not join within {seconds:.0f} s: {remedy}")

    def close(self) -> None:
        """End this rank's heartbeat."""
        self._closed.set()

    def set(self, key: str, value: bytes) -> None:
        self._bounded(self.store.set, key, value)

    def broadcast(self, value: Any = None) -> Any:
        """Give rank 0's value to all ranks; the others wait as long as rank 0 lives."""
        self.rounds += 1
        key = f"broadcast/{self.rounds}"
        if self.rank == 0:
            self.set(key, pickle.dumps(value))
            return value
        self._wait([key])
        return pickle.loads(self._bounded(self.store.get, key))

    def all_gather(self, value: Any) -> list[Any]:
        """Give every rank's value to all ranks, in order of rank."""
        self.rounds += 1
        keys = self._keys(f"gather/{self.rounds}")
        self.set(keys[self.rank], pickle.dumps(value))
        if missing := self._wait(keys, WORK_TIMEOUTS * self.timeout, heartbeats=True):
            raise self._lost(missing)
        return [pickle.loads(data) for data in self._bounded(self.store.multi_get, keys)]

    def explain(self, error: Exception) -> Exception:
        """Report to the other ranks why this one fails; return the error to raise.

        For a failed collective, that is an error which names the rank that caused it.
        """
        collective_failed = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and "gloo" in str(error)
        )
        reason = str(error).partition("\n")[0] or type(error).__name__
        keys = self._keys("ended")
        try:
            if not collective_failed and not isinstance(error, LostRankError):
                self.set("failure", f"rank {self.rank} on {socket.gethostname()} failed: {reason}".encode())
            self.set(keys[self.rank], b"")
            if not collective_failed:
                return error
            if missing := self._wait(keys, min(self.timeout, REPORT_TIMEOUT)):
                return self._lost(missing)
            self._raise_reported_failure()
            return LostRankError(f"communication between ranks failed: {reason}")
        except LostRankError as lost:
            return lost if collective_failed else error

    def wait_for_readers(self) -> None:
        """On rank 0, after an error: keep the store alive until the other ranks have read it."""
        end = time.monotonic() + min(self.timeout, REPORT_TIMEOUT)
        with suppress(LostRankError):
            while time.monotonic() < end and not self._bounded(self.store.check, self._keys("ended")):
                time.sleep(0.02)

    def _wait(self, keys: Sequence[str], seconds: float = math.inf, *, heartbeats: bool = False) -> str:
        """Wait until the keys of all ranks are set; after `seconds`, return the ranks whose keys are missing.

        `heartbeats`: return the ranks that have no heartbeat as soon as that is known. Polls, so that Ctrl-C is handled
        meanwhile.
        """
        start, beats_due = time.monotonic(), 0.0
        last_beats: dict[int, tuple[bytes, float]] = {}
        while not self._bounded(self.store.check, list(keys)):
            self._raise_reported_failure()
            waited = time.monotonic() - start
            if waited > seconds:
                return self._names(self._missing(keys))
            if heartbeats and waited >= beats_due:
                beats_due = waited + self.timeout / HEARTBEATS
                if silent := self._silent(self._missing(keys), last_beats):
                    return self._names(silent)
            time.sleep(min(0.5, 0.002 + waited / 10))
        return ""

    def _beat(self) -> None:
        """Count heartbeats in the store until it is gone or closed."""
        with suppress(dist.DistError, RuntimeError):
            for beat in count():
                self.store.set(f"heartbeat/{self.rank}", str(beat))
                if self._closed.wait(self.timeout / HEARTBEATS):
                    return

    def _silent(self, ranks: Sequence[int], last_beats: dict[int, tuple[bytes, float]]) -> list[int]:
        """The ranks whose heartbeat has not changed for a time-out; `last_beats`: each rank's last, and since when."""
        now = time.monotonic()
        for rank in ranks:
            beat = self._read(f"heartbeat/{rank}")
            if rank not in last_beats or last_beats[rank][0] != beat:
                last_beats[rank] = (beat, now)
        return [rank for rank in ranks if now - last_beats[rank][1] > self.timeout]

    def _raise_reported_failure(self) -> None:
        if self._bounded(self.store.check, ["failure"]):
            raise LostRankError(self._bounded(self.store.get, "failure").decode())

    def _bounded(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the store in a thread: torch's client waits for ever for a server whose process is suspended.

        Pauses are counted, not seconds: a rank that was itself suspended must not report rank 0 as lost.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(call(*arguments))
            except Exception as error:
                result.set_exception(error)

        threading.Thread(target=run, name="rank-store", daemon=True).start()
        pause = self.timeout / 5
        for _ in range(5):
            try:
                return result.result(pause)
            except TimeoutError:
                continue
            except (dist.DistError, RuntimeError):
                break
        raise self._lost("rank 0")

    def _keys(self, name: str) -> list[str]:
        return [f"{name}/{rank}" for rank in range(self.size)]

    def _read(self, key: str) -> bytes:
        """The value of a key; empty if it is not set."""
        return self._bounded(self.store.get, key) if self._bounded(self.store.check, [key]) else b""

    def _missing(self, keys: Sequence[str]) -> list[int]:
        """The ranks whose keys are not set."""
        return [rank for rank, key in enumerate(keys) if not self._bounded(self.store.check, [key])]

    def _names(self, ranks: Sequence[int]) -> str:
        """Ranks with their hosts as far as known."""
        hosts = {rank: self._read(f"host/{rank}").decode() for rank in ranks}
        return ", ".join(f"rank {rank} on {host}" if host else f"rank {rank}" for rank, host in hosts.items())

    def _lost(self, ranks: str) -> LostRankError:
        return LostRankError(
            f"{ranks} died or has not answered for {self.timeout:g} s ({TIMEOUT_VARIABLE}): this rank ends, too; "
            f"continue from the last checkpoint with: {call('train', resume='DIR')}"
        )


def connect(info: RankInfo) -> TCPStore:
    """A connection to the store that rank 0 hosts; on rank 0, the store lives as long as this reference.

    Under torchrun, MASTER_PORT belongs to torchrun's agent: rank 0 tells the others its own port through the agent.
    """
    is_server, agent = info.rank == 0, None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        prefix = f"heedful/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        agent = PrefixStore(prefix, _tcp_store(info, info.port, server=False))
    if agent is None:
        return _tcp_store(info, info.port, server=is_server)
    store = _tcp_store(info, 0 if is_server else int(agent.get("port")), server=is_server)
    if is_server:
        agent.set("port", str(store.port))
    return store


def _tcp_store(info: RankInfo, port: int, *, server: bool) -> TCPStore:
    try:
        return TCPStore(info.host, port, None, server, timedelta(seconds=JOIN_TIMEOUT), wait_for_workers=False)
    except (dist.DistError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise HeedfulError(f"rank {info.rank} cannot reach rank 0 at {info.host}:{port}: {reason}") from None
