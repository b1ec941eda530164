"""Request threads: serve each text in its own thread, with the library's public methods.

Used for texts decoded by continuous batching (the thread waits for its tokens, see `generation/continuous`), and for
requests that cannot be batched: interventions, exact results, calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore, Thread

from heedful.engine.engine_request import Job
from heedful.engine.fair_queue import FairQueue
from heedful.engine.job_runner import JobRunner


class RequestThreads:
    """Takes jobs from a queue while fewer than `limit` are running."""

    def __init__(self, queue: FairQueue, runner: JobRunner, limit: int, name: str) -> None:
        self.queue, self.runner = queue, runner
        self._free = Semaphore(limit)
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix=name)
        self.dispatcher = Thread(target=self._dispatch, name=f"{name} dispatcher", daemon=True)

    def start(self) -> None:
        self.dispatcher.start()

    @property
    def is_alive(self) -> bool:
        """Whether jobs are still taken from the queue."""
        return self.dispatcher.is_alive()

    def _dispatch(self) -> None:
        """Start the next due job in a thread whenever one is free."""
        while True:
            self._free.acquire()
            jobs = self.queue.take(lambda due: due[:1])
            if not jobs:
                return
            self._pool.submit(self._run, jobs)

    def _run(self, jobs: Sequence[Job]) -> None:
        try:
            self.runner.run(jobs)
        finally:
            self._free.release()
            self.queue.charge(jobs[0].group, 1.0)
