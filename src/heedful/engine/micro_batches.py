"""Micro-batches: workers that take the jobs waiting now, of one group and similar length, and run them as one batch.

For tasks of a single pass (classify, fill, answer, embed), and where a text cannot join a batch that is being decoded:
with CTranslate2, on a GPU (CUDA graphs of fixed sizes) and for models that only their own modules compute.
Nothing waits while a worker is idle. Under load each worker has one thread, which measures faster than one worker with
all threads; a lone job has them all. Waiting jobs are split evenly between the workers. The first of several workers
takes no job that is long for its group, so that a short text never waits for a long one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock, Thread

import torch

from heedful.engine.engine_request import Job
from heedful.engine.fair_queue import FairQueue
from heedful.engine.job_runner import JobRunner

MAX_TEXTS, MAX_GPU_TEXTS = 32, 256
"""Texts of a batch on a CPU and on a GPU; beyond, a batch takes longer and is hardly more efficient."""
SIMILAR_LENGTH = 2.0
"""Texts of a batch are at most this factor shorter or longer than the one that is due, …"""
SIMILAR_CHARACTERS = 24
"""… or differ by so few characters."""
LONG = 3.0
"""A job is long if it has this many times the usual characters of its group."""
KEPT_GROUPS = 1024
"""Groups whose usual length is remembered: clients choose options, and so groups, without end."""
REFILL_SHARE, REFILL_SECONDS = 0.25, 0.005
"""Under load a worker waits for its next batch to fill up: this share of the last batch's time, and at most so long."""


@dataclass
class _UsualLength:
    """The characters of each group's jobs, as a moving average."""

    characters: dict[object, float] = field(default_factory=dict)

    def is_long(self, job: Job) -> bool:
        return job.length > LONG * self.characters.get(job.group, math.inf)

    def learn(self, jobs: Sequence[Job]) -> None:
        group, share = jobs[0].group, min(0.5, 0.05 * len(jobs))
        mean = sum(job.length for job in jobs) / len(jobs)
        self.characters[group] = (1 - share) * self.characters.get(group, mean) + share * mean
        if len(self.characters) > KEPT_GROUPS:
            del self.characters[next(iter(self.characters))]


class MicroBatches:
    """Worker threads that run micro-batches from a queue."""

    def __init__(self, queue: FairQueue, runner: JobRunner, workers: int, threads: int) -> None:
        self.queue, self.runner, self.threads = queue, runner, threads
        self._usual, self._lock, self._busy = _UsualLength(), Lock(), 0
        self.workers = [
            Thread(target=self._work, args=(workers > 1 and index == 0,), name=f"batch worker {index}", daemon=True)
            for index in range(workers)
        ]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    @property
    def is_alive(self) -> bool:
        """Whether all workers run."""
        return all(worker.is_alive() for worker in self.workers)

    def _work(self, only_short: bool) -> None:
        """Take and run batches until the queue is closed."""

        def choose(jobs: Sequence[Job]) -> Sequence[Job]:
            return self._choose(jobs, only_short)

        while batch := self.queue.take(choose):
            with self._lock:
                self._busy += 1
                alone = self._busy == 1 and len(batch) == 1 and not len(self.queue)
            torch.set_num_threads(self.threads if alone else 1)
            start = time.monotonic()
            self.runner.run(batch)
            seconds = time.monotonic() - start
            self.queue.charge(batch[0].group, seconds)
            with self._lock:
                self._usual.learn(batch)
                self._busy -= 1
            if len(batch) > 1:
                self.queue.wait_for_more(len(batch), min(REFILL_SECONDS, REFILL_SHARE * seconds))

    def _choose(self, jobs: Sequence[Job], only_short: bool) -> Sequence[Job]:
        """The job that is due, and a worker's share of the others of similar length, nearest in length first."""
        if only_short:
            jobs = [job for job in jobs if not self._usual.is_long(job)]
        if not jobs:
            return []
        length = jobs[0].length
        slack = max(SIMILAR_CHARACTERS, (SIMILAR_LENGTH - 1) * length)
        similar = [job for job in jobs[1:] if -slack / SIMILAR_LENGTH <= job.length - length <= slack]
        similar.sort(key=lambda job: abs(job.length - length))
        share = math.ceil((len(jobs) + self.runner.active) / len(self.workers))
        most = MAX_TEXTS if jobs[0].trained.device.type == "cpu" else MAX_GPU_TEXTS
        return [jobs[0], *similar[: max(1, min(share, most)) - 1]]
