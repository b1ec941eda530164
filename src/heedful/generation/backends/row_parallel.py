"""Rows of a batch side by side: a share of them for every thread, instead of all threads for every product.

Threads that share a product wait for each other some hundred times a step. With two cores free, a base-sized model
wrote 1,060 tokens a second that way and 1,034 in shares; with other processes busy on them, a small one wrote 244 and
993.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread
from typing import Any, TypeVar

import torch

from heedful.generation.backends.cpu_decoder import CpuDecoder
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.layers.taps import has_listeners
from heedful.models.model_config import TransformerConfig

Answer = TypeVar("Answer")
Work = Callable[[Any, Sequence[int], Callable[[int], object]], list[Answer]]
"""What is done to a share: told the model, which texts these are, and where to report how many are done."""


class DecodingCancelled(Exception):  # noqa: N818 - nobody's mistake
    """Somebody else has met an error, or Ctrl-C."""


class CancellableModel:
    """A model that reads no further token once it is told to stop."""

    def __init__(self, model: Any, stop: Event) -> None:
        self.model, self.stop = model, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def extend(self, *given: Any, **options: Any) -> Any:
        if self.stop.is_set():
            raise DecodingCancelled
        return self.model.extend(*given, **options)


def worker_count(model: Any, texts: int, rows_each: int) -> int:
    """In how many shares so many texts are best written: as many as there are threads, if each gets enough rows.

    What is heard at taps would come out of order.
    """
    if not isinstance(model, CpuDecoder) or model.config.width < WIDE_MODEL or has_listeners(model.model):
        return 1
    return max(1, min(torch.get_num_threads(), texts * rows_each // ROWS_PER_THREAD, texts))


def worth_it(config: TransformerConfig, texts: int, rows_each: int) -> bool:
    """Whether torch writes so many texts on a CPU faster than CTranslate2: if there are rows enough for every thread.

    Its products come from weights laid out for them (`packed`), but every call of it costs a little time, so the model
    must be wide: with two threads it wrote 1.3 times as fast at width 512, and more slowly at 256.
    """
    threads = torch.get_num_threads()
    return config.width >= WIDE_MODEL and texts >= threads and texts * rows_each >= ROWS_PER_THREAD * threads


def run_row_parallel(
    model: Any, lengths: Sequence[int], count: int, work: Work[Answer], progress: Callable[[int], object]
) -> list[Answer]:
    """Answers to texts of these lengths, in their order, found in so many shares; each has some of every length."""
    if count == 1:
        return work(model, range(len(lengths)), progress)
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    parts = [order[first::count] for first in range(count)]
    answers: dict[int, Answer] = {}
    errors: list[BaseException] = []
    stop, lock, threads = Event(), Lock(), torch.get_num_threads()
    stoppable = CancellableModel(model, stop)

    def report(done: int) -> None:
        with lock:
            progress(done)

    def write(part: Sequence[int]) -> None:
        try:
            torch.set_num_threads(max(1, threads // count))
            answers.update(zip(part, work(stoppable, part, report), strict=True))
        except BaseException as error:
            errors.append(error)
            stop.set()

    helpers = [Thread(target=write, args=(part,)) for part in parts[1:]]
    try:
        for helper in helpers:
            helper.start()
        write(parts[0])
        for helper in helpers:
            helper.join()
    finally:
        stop.set()
        torch.set_num_threads(threads)
    if errors:
        raise next((error for error in errors if not isinstance(error, DecodingCancelled)), errors[0])
    return [answers[text] for text in range(len(lengths))]
