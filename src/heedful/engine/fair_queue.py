"""A bounded queue of jobs, served in turn: models by the time they have used, clients of a model by rotation.

A client with a thousand jobs waiting and one with a single job each get every other place; a model that was served for
a second waits until the others have had theirs.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from threading import Condition, RLock

from heedful.engine.engine_request import Job
from heedful.engine.ticket import QueueFullError

Choose = Callable[[Sequence[Job]], Sequence[Job]]
"""Chooses a batch from the jobs of one group, given in the order in which they are due; none = not this group."""
SCAN_LIMIT = 256
"""Jobs of a group that a batch is chosen from."""


class _Group:
    """The waiting jobs of one group, by client."""

    def __init__(self, seconds: float) -> None:
        self.clients: OrderedDict[str, deque[Job]] = OrderedDict()
        self.seconds = seconds
        """Time that the group has used; it starts at the least of the others', so that idle time earns no priority."""

    def put(self, job: Job) -> None:
        self.clients.setdefault(job.request.client, deque()).append(job)

    def in_turn(self) -> list[Job]:
        """The first jobs: one of each client, then the second of each, …"""
        turns: list[Job] = []
        queues = [list(jobs)[:SCAN_LIMIT] for jobs in self.clients.values()]
        for turn in range(max(map(len, queues), default=0)):
            turns += [jobs[turn] for jobs in queues if turn < len(jobs)]
            if len(turns) >= SCAN_LIMIT:
                break
        return turns

    def remove(self, jobs: Sequence[Job]) -> None:
        """Remove these jobs; their clients move to the end of the rotation."""
        removed = set(map(id, jobs))
        for client in dict.fromkeys(job.request.client for job in jobs):
            left = deque(job for job in self.clients[client] if id(job) not in removed)
            self.clients.pop(client)
            if left:
                self.clients[client] = left

    def purge(self) -> int:
        """Drop the jobs of cancelled and expired requests; returns how many."""
        over = [job for jobs in self.clients.values() for job in jobs if job.ticket.is_over]
        self.remove(over)
        return len(over)


class FairQueue:
    """Waiting jobs; `put` and `take` may be called from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._groups: dict[Hashable, _Group] = {}
        self._size = 0
        lock = RLock()
        self._changed, self._filled = Condition(lock), Condition(lock)
        self._awaited: list[int] = []
        """Queue lengths that `wait_for_more` waits for; its threads are woken only when one is reached."""
        self._closed = False

    def __len__(self) -> int:
        return self._size

    def put(self, jobs: Sequence[Job]) -> None:
        """Append jobs; QueueFullError if they do not all fit."""
        with self._changed:
            if self._size + len(jobs) > self.limit:
                self._purge()
            if self._size + len(jobs) > self.limit:
                raise QueueFullError(
                    f"{self._size:,} texts are waiting and the limit is {self.limit:,}; try again later"
                )
            for job in jobs:
                if job.group not in self._groups:
                    least = min((group.seconds for group in self._groups.values()), default=0.0)
                    self._groups[job.group] = _Group(least)
                self._groups[job.group].put(job)
            self._size += len(jobs)
            self._changed.notify_all()
            if self._size >= min(self._awaited, default=math.inf):
                self._filled.notify_all()

    def take(self, choose: Choose, timeout: float | None = None) -> list[Job]:
        """Wait for jobs and take a batch of the group that is due; [] when closed, or after `timeout` seconds."""
        with self._changed:
            while not self._closed:
                for group in self._in_turn():
                    if batch := list(choose(group.in_turn())):
                        group.remove(batch)
                        self._size -= len(batch)
                        return batch
                if not self._changed.wait(timeout):
                    return []
            return []

    def wait_for_more(self, jobs: int, seconds: float) -> None:
        """Wait until this many jobs are waiting, at most so long."""
        with self._filled:
            self._awaited.append(jobs)
            self._filled.wait_for(lambda: self._closed or self._size >= jobs, seconds)
            self._awaited.remove(jobs)

    def charge(self, group: Hashable, seconds: float) -> None:
        """Count time that was spent on a group."""
        with self._changed:
            if group in self._groups:
                self._groups[group].seconds += seconds

    def close(self) -> None:
        """Wake up every thread that waits; nothing is taken any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._filled.notify_all()

    def _in_turn(self) -> Iterator[_Group]:
        self._purge()
        return iter(sorted(self._groups.values(), key=lambda group: group.seconds))

    def _purge(self) -> None:
        """Drop jobs that are over, and groups that have been idle once others have used more time."""
        for group in self._groups.values():
            self._size -= group.purge()
        busy = [group.seconds for group in self._groups.values() if group.clients]
        if busy:
            self._groups = {
                key: group for key, group in self._groups.items() if group.clients or group.seconds > min(busy)
            }
