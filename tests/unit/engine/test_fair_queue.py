"""The queue of jobs: a worker that waits for its next batch to fill up is woken when it has, and not for every job."""

from __future__ import annotations

import time
from threading import Thread
from typing import Any

from heedful.engine.engine_request import EngineRequest, Job, ServedModel
from heedful.engine.fair_queue import FairQueue
from heedful.engine.ticket import Ticket


def job(text: str) -> Job:
    trained: Any = None  # no model reads it
    request = EngineRequest("m", "translate", [text])
    return Job(ServedModel("m", trained), trained, request, {}, text, 0, Ticket(1), "group")


def test_waiting_for_more_ends_with_the_job_that_completes_the_number() -> None:
    queue, woken = FairQueue(10), []
    thread = Thread(target=lambda: woken.append(queue.wait_for_more(3, seconds=60)))
    thread.start()
    for number in range(2):
        queue.put([job(str(number))])
    time.sleep(0.1)
    assert not woken
    queue.put([job("2")])
    thread.join(20)
    assert woken
    assert len(queue.take(lambda due: due)) == 3


def test_closing_ends_waiting_for_more() -> None:
    queue = FairQueue(10)
    thread = Thread(target=queue.wait_for_more, args=(3, 60))
    thread.start()
    queue.close()
    thread.join(20)
    assert not thread.is_alive()
