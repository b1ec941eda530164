"""Runs batches of jobs: delivers results to tickets, isolates the request that fails, and counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from heedful.cancellation import REQUEST_IS_OVER, WorkCancelledError
from heedful.engine.engine_request import Job, ServedModel, run_jobs, stream_job
from heedful.engine.ticket import wake_together


@dataclass(frozen=True)
class BatchRecord:
    """A batch that has been run, for metrics."""

    model: str
    task: str
    texts: int
    """For a text that is decoded step by step: the texts of its model that shared its last step."""
    seconds: float


Observe = Callable[[BatchRecord], object]


class JobRunner:
    """Runs jobs in the calling thread and notes since when. `shares_steps`: those running are decoded together."""

    def __init__(self, observe: Observe | None = None, *, shares_steps: bool = False) -> None:
        self.observe, self.shares_steps = observe, shares_steps
        self._running: dict[int, tuple[float, Sequence[Job]]] = {}
        self._lock, self._started = Lock(), 0

    @property
    def active(self) -> int:
        """Texts that are being processed."""
        return sum(len(jobs) for _, jobs in list(self._running.values()))

    def busy_seconds(self) -> float:
        """How long the longest running batch has been running."""
        now = time.monotonic()
        return max((now - start for start, _ in list(self._running.values())), default=0.0)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run jobs of one group together; if that fails, each alone, so that one request's failure is its own."""
        with self._noted(jobs):
            if jobs[0].request.stream:
                deliver_stream(jobs[0])
            elif len(jobs) == 1:
                deliver(jobs)
            else:
                try:
                    deliver_together(jobs)
                except BaseException:  # no request may end the worker thread
                    for job in jobs:
                        deliver([job])

    @contextmanager
    def _noted(self, jobs: Sequence[Job]) -> Iterator[None]:
        start = time.monotonic()
        with self._lock:
            self._started += 1
            number = self._started
        self._running[number] = (start, jobs)
        try:
            yield
        finally:
            texts = self._active_of(jobs[0].served) if self.shares_steps else len(jobs)
            del self._running[number]
            if self.observe is not None:
                served, request = jobs[0].served, jobs[0].request
                self.observe(BatchRecord(served.name, request.task, texts, time.monotonic() - start))

    def _active_of(self, served: ServedModel) -> int:
        return sum(len(jobs) for _, jobs in list(self._running.values()) if jobs[0].served is served)


def deliver_together(jobs: Sequence[Job]) -> None:
    """Run jobs as one batch and store their results."""
    results = run_jobs(jobs)
    with wake_together():
        for job, result in zip(jobs, results, strict=True):
            job.ticket.put(job.index, result)


def deliver(jobs: Sequence[Job]) -> None:
    """Run one job; store its result or error in its ticket. No error ends the engine's thread."""
    (job,) = jobs
    if job.ticket.is_over:
        return
    try:
        with _decoding_for(job):
            deliver_together(jobs)
    except WorkCancelledError:
        return  # the ticket is cancelled, or knows its deadline
    except BaseException as error:
        job.ticket.fail(error)


def deliver_stream(job: Job) -> None:
    """Stream a continuation to its ticket until it ends or the request is over."""
    try:
        with _decoding_for(job):
            put_pieces(job, stream_job(job))
    except WorkCancelledError:
        return
    except BaseException as error:
        job.ticket.fail(error)


def put_pieces(job: Job, pieces: Iterator[str]) -> None:
    """Give a ticket the pieces of a stream; its result is what the stream returns, which says how the text ended."""
    try:
        while not job.ticket.is_over:
            job.ticket.put_piece(next(pieces))
    except StopIteration as end:
        job.ticket.put(job.index, end.value)


@contextmanager
def _decoding_for(job: Job) -> Iterator[None]:
    """Cancel what this thread decodes as soon as the job's request is over."""
    token = REQUEST_IS_OVER.set(lambda: job.ticket.is_over)
    try:
        yield
    finally:
        REQUEST_IS_OVER.reset(token)
