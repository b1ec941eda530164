"""A step worker: a thread that decodes all submitted texts as one continuous batch, one token per step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread

import torch
from torch import Tensor

from heedful.cancellation import WorkCancelledError
from heedful.generation.backends.cpu_decoder import CpuDecoder
from heedful.generation.backends.torch_backend import max_context
from heedful.generation.continuous.choose_tokens import choose_tokens
from heedful.generation.continuous.cohort import Cohort, CohortKey, cohort_key
from heedful.generation.continuous.prefill import CHUNK_TOKENS, Prefill, continued_item, group_items, new_item
from heedful.generation.continuous.queued_text import QueuedText
from heedful.generation.continuous.running_search import RunningSearch
from heedful.generation.search.decoding_batch import masked_log_softmax
from heedful.models.protocols import DecoderModel

MEMORY_POSITIONS = 1 << 15
"""KV-cache budget in positions, assuming that every text runs to its limit; a single text may exceed it."""
PATIENCE = 1.0
"""Seconds for which later texts that fit may overtake one that does not fit yet."""
IDLE_SECONDS = 5.0
"""Idle time after which the thread ends; the next text starts a new thread."""


class StepWorker:
    """Decodes texts in a continuous batch: each joins at the next step, and leaves when it is done.

    `decoding_model` returns the model or its faster equivalent; it is called when a text reaches an idle worker.
    """

    def __init__(self, decoding_model: Callable[[], DecoderModel], name: str, threads: int) -> None:
        self.decoding_model, self.threads = decoding_model, threads
        self.neighbors: Sequence[StepWorker] = ()
        """Workers on the same CPU: while any of them is busy, this one runs with a single thread."""
        self.waiting: deque[tuple[float, QueuedText]] = deque()
        self.suspects: deque[QueuedText] = deque()
        """Texts of a failed step: each is decoded alone, so that only the one that caused the error fails."""
        self.prefills: list[Prefill] = []
        self.cohorts: dict[CohortKey, Cohort] = {}
        self.steps = 0
        self._model: DecoderModel | None = None
        self._changed, self._last_step = Condition(), time.monotonic()
        self._name = name
        self._thread: Thread | None = None

    def submit(self, text: QueuedText) -> None:
        """Queue a text, which joins the batch at the next step."""
        with self._changed:
            if self.is_idle:
                self._last_step = time.monotonic()
            self.waiting.append((time.monotonic(), text))
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def searches(self) -> list[RunningSearch]:
        """The running searches, including those in prefill."""
        prefilling = [search for prefill in self.prefills for item in prefill.items for search in item.searches]
        return prefilling + [search for cohort in list(self.cohorts.values()) for search in cohort.searches]

    @property
    def rows(self) -> int:
        """Rows of the batch, including those waiting to join."""
        waiting = sum(text.settings.rows_per_text for _, text in list(self.waiting))
        return waiting + sum(search.width for search in self.searches)

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.suspects or self.prefills or self.cohorts)

    def busy_seconds(self) -> float:
        """Seconds since the last step; 0 if idle."""
        return 0.0 if self.is_idle else time.monotonic() - self._last_step

    def _run(self) -> None:
        while self._has_work():
            threads = self.threads if all(neighbor.is_idle for neighbor in self.neighbors) else 1
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            try:
                with torch.inference_mode():
                    self._step()
            except BaseException as error:
                self._recover(error)
            self._last_step = time.monotonic()

    def _has_work(self) -> bool:
        """Wait for a text; after `IDLE_SECONDS` without one return False, which ends the thread."""
        with self._changed:
            if self.is_idle:
                self._model = None
                self._changed.wait_for(lambda: self.waiting, IDLE_SECONDS)
            if self.is_idle:
                self._thread = None
                return False
            return True

    def _step(self) -> None:
        """Drop cancelled texts, prefill some tokens of new ones, and decode one token of all others."""
        self._model = self._model or self.decoding_model()
        self._drop_cancelled()
        self._admit(self._model)
        self._advance_prefills()
        if self.cohorts:
            self._decode(self._model)
            self._prefill_outgrown(self._model)
            self.steps += 1

    def _decode(self, model: DecoderModel) -> None:
        cohorts = list(self.cohorts.values())
        logits = next_logits(model, cohorts)
        choose_tokens([search for cohort in cohorts for search in cohort.searches], masked_log_softmax(logits))
        done = [search for cohort in cohorts for search in cohort.settle()]
        self._drop_empty()
        complete(done)

    def _admit(self, model: DecoderModel) -> None:
        """Admit texts that fit into memory, the oldest first; one that has waited for `PATIENCE` is not overtaken."""
        if self.suspects:
            texts = [] if self.prefills or self.cohorts else [self.suspects.popleft()]
        else:
            texts = self._take_fitting()
        window = max_context(model) if texts and texts[0].source is None else None
        for group in group_items(new_item(text, window) for text in texts):
            self.prefills.append(Prefill(model, group))

    def _take_fitting(self) -> list[QueuedText]:
        if not self.waiting:
            return []
        used = sum(search.width * search.text.positions for search in self.searches)
        taken: list[QueuedText] = []
        kept: list[tuple[float, QueuedText]] = []
        tokens, blocked = sum(prefill.next_tokens for prefill in self.prefills), False
        with self._changed:
            while self.waiting and tokens < CHUNK_TOKENS:
                since, text = self.waiting.popleft()
                if blocked or (used and used + text.memory > MEMORY_POSITIONS):
                    kept.append((since, text))
                    blocked = blocked or time.monotonic() - since > PATIENCE
                    continue
                taken.append(text)
                used += text.memory
                tokens += len(text.source or ()) + len(text.prompt)
            self.waiting.extendleft(reversed(kept))
        return taken

    def _advance_prefills(self) -> None:
        """Prefill up to `CHUNK_TOKENS` tokens of new texts; those whose first tokens are chosen join their cohorts."""
        budget = CHUNK_TOKENS
        for prefill in list(self.prefills):
            if budget <= 0:
                return
            budget -= prefill.next_tokens
            if prefill.advance():
                self.prefills.remove(prefill)
                self._join(prefill)

    def _join(self, prefill: Prefill) -> None:
        joining: dict[CohortKey, tuple[list[RunningSearch], list[int]]] = {}
        complete([search for search, _ in prefill.finished()])
        for search, rows in prefill.finished():
            if not (search.is_done or search.text.is_done):
                searches, all_rows = joining.setdefault(cohort_key(search), ([], []))
                searches.append(search)
                all_rows += rows
        for key, (searches, rows) in joining.items():
            cohort = self.cohorts.setdefault(key, Cohort(key[0]))
            cohort.join(searches, prefill.state, rows, prefill.source_lengths)

    def _prefill_outgrown(self, model: DecoderModel) -> None:
        """Prefill searches whose next token would exceed the window again, from the second half of the window."""
        window = max_context(model)
        if window is None:
            return
        outgrown = [
            search
            for cohort in self.cohorts.values()
            for search in cohort.searches
            if search.text.source is None and search.end - search.window_start > window
        ]
        if outgrown:
            for cohort in self.cohorts.values():
                cohort.remove(outgrown)
            self._drop_empty()
            for group in group_items(continued_item(search, window) for search in outgrown):
                self.prefills.append(Prefill(model, group))

    def _drop_cancelled(self) -> None:
        """Remove the texts of cancelled and expired requests."""
        over = {id(search.text): search.text for search in self.searches if search.text.is_over()}
        over |= {id(text): text for _, text in list(self.waiting) if text.is_over()}
        if not over:
            return
        with self._changed:
            self.waiting = deque((since, text) for since, text in self.waiting if id(text) not in over)
        self.prefills = [batch for batch in self.prefills if not all(id(item.text) in over for item in batch.items)]
        for cohort in self.cohorts.values():
            cohort.remove([search for search in cohort.searches if id(search.text) in over])
        self._drop_empty()
        for text in over.values():
            text.fail(WorkCancelledError("the request was cancelled, or is past its deadline"))

    def _drop_empty(self) -> None:
        self.cohorts = {key: cohort for key, cohort in self.cohorts.items() if cohort.searches}

    def _take_running(self) -> list[QueuedText]:
        """Empty the batch, and return its unfinished texts."""
        texts = {id(search.text): search.text for search in self.searches}
        self.prefills, self.cohorts = [], {}
        return [text for text in texts.values() if not text.is_done]

    def _recover(self, error: BaseException) -> None:
        """After a failed step: fail its only text, or decode each of its texts again, one at a time."""
        texts = self._take_running()
        if len(texts) == 1:
            texts[0].fail(error)
            return
        for text in texts:
            text.restart()
        self.suspects.extend(texts)


def step_workers(
    decoding_model: Callable[[], DecoderModel], threads: int, *, split_rows: bool
) -> tuple[StepWorker, ...]:
    """One worker with all threads, or one single-threaded worker per thread."""
    number = threads if split_rows else 1
    workers = tuple(StepWorker(decoding_model, f"step worker {index}", threads) for index in range(number))
    for worker in workers:
        worker.neighbors = [other for other in workers if other is not worker]
    return workers


def complete(searches: Iterable[RunningSearch]) -> None:
    """Deliver the hypotheses of searches that are done."""
    for search in searches:
        if search.is_done and not search.text.is_done:
            search.text.complete(search.number, search.hypotheses())


def next_logits(model: DecoderModel, cohorts: Sequence[Cohort]) -> Tensor:
    """Logits after one more token of every row of every cohort."""
    tokens = [torch.tensor(cohort.last_tokens, device=model.device) for cohort in cohorts]
    caches = [cohort.state for cohort in cohorts]
    if isinstance(model, CpuDecoder) and all(model.supports(cache) for cache in caches):
        return model.decode_one_token(torch.cat(tokens), *caches)
    logits = [model.extend(row[:, None], cache, last=True)[:, 0] for row, cache in zip(tokens, caches, strict=True)]
    return logits[0] if len(logits) == 1 else torch.cat(logits)
