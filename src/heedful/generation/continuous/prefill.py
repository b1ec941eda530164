"""Prefill: encode new texts together, read their prompts in chunks, and choose their first tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.data.collate import pad_sequences
from heedful.generation.continuous.choose_tokens import choose_tokens
from heedful.generation.continuous.queued_text import QueuedText
from heedful.generation.continuous.running_search import RunningSearch, start_searches
from heedful.generation.search.decoding_batch import MIN_FORCED_LOG_PROBABILITY, masked_log_softmax
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.stop_strings import FORBIDDEN, START_STATE, STOPPED
from heedful.models.protocols import DecoderModel
from heedful.shapes import Float
from heedful.text.special_tokens import END

CHUNK_TOKENS = 256
"""Tokens of new texts read between two decode steps of the running texts (chunked prefill)."""


class PrefillItem(NamedTuple):
    """Rows to read that share a source: those of a new text, or of a search that outgrew its window."""

    text: QueuedText
    searches: list[RunningSearch]
    rows: list[list[int]]

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Items of one shape are read together: sources of similar length, and decoder rows of equal length."""
        source = 0 if self.text.source is None else (len(self.text.source) + 1).bit_length()
        return source, len(self.rows[0]), bool(self.text.forced)

    @property
    def tokens(self) -> int:
        return len(self.text.source or ()) + sum(map(len, self.rows))


def new_item(text: QueuedText, window: int | None) -> PrefillItem:
    """The prefill of a new text."""
    searches = start_searches(text)
    prompt = [*text.prompt, *text.forced]
    if window is not None and len(prompt) > window:
        for search in searches:
            search.window_start = len(prompt) - max(1, window // 2)
        prompt = prompt[searches[0].window_start :]
    return PrefillItem(text, searches, [prompt])


def continued_item(search: RunningSearch, window: int) -> PrefillItem:
    """The prefill of a search whose rows have outgrown the window."""
    return PrefillItem(search.text, [search], search.unread_window(window))


class Prefill:
    """The prefill of items of one shape, in chunks."""

    def __init__(self, model: DecoderModel, items: Sequence[PrefillItem]) -> None:
        self.model, self.items = model, items
        self.tokens = torch.tensor([row for item in items for row in item.rows], device=model.device)
        self.read = 0
        self.source_lengths: Tensor | None = None
        self.state: Any = None
        """The KV cache or hidden state of all rows."""

    @property
    def next_tokens(self) -> int:
        """Tokens that the next chunk reads."""
        sources = sum(len(item.text.source or ()) for item in self.items) if self.state is None else 0
        return sources + len(self.tokens) * self._chunk

    @property
    def _chunk(self) -> int:
        """Positions that the next chunk reads in each row."""
        left = self.tokens.shape[1] - self.read
        return left if self.items[0].text.forced else min(left, max(1, CHUNK_TOKENS // len(self.tokens)))

    def advance(self) -> bool:
        """Encode the sources or read the next chunk; return whether all is read and first tokens are chosen."""
        if self.state is None:
            self._start()
        chunk = self._chunk
        unread = self.tokens[:, self.read : self.read + chunk]
        self.read += chunk
        forced = bool(self.items[0].text.forced) and self.items[0].searches[0].generated == 0
        logits = self.model.extend(unread, self.state, last=not forced)
        if self.read < self.tokens.shape[1]:
            return False
        if forced:
            self._force(masked_log_softmax(logits))
        chosen, rows = self._search_rows(lambda search: range(len(search.tokens)))
        choose_tokens(chosen, masked_log_softmax(logits[:, -1])[torch.tensor(rows)])
        return True

    def _start(self) -> None:
        capacity = self.tokens.shape[1]
        if self.items[0].text.source is None:
            self.state = self.model.start(len(self.tokens), capacity=capacity)
            return
        sources = [item.text.source or () for item in self.items]
        source, self.source_lengths = pad_sequences(sources, end=END, device=self.model.device)
        self.state = self.model.start(source, self.source_lengths, capacity=capacity)

    def _force(self, log_probabilities: Float[Tensor, "rows tokens vocabulary"]) -> None:
        """Begin each search with its forced tokens."""
        for item, scores in zip(self.items, log_probabilities, strict=True):
            forced = torch.tensor(item.text.forced, device=scores.device)
            steps = scores[-len(forced) - 1 : -1].gather(1, forced[:, None])[:, 0]
            state = automaton_state(item.text.settings.rules, item.text.forced)
            for search in item.searches:
                search.force(steps.clamp(min=MIN_FORCED_LOG_PROBABILITY).tolist(), [state])

    def _search_rows(self, rows_of: Any) -> tuple[list[RunningSearch], list[int]]:
        """All searches, and the indices of their rows in the prefilled state."""
        first, searches, rows = 0, [], list[int]()
        for item in self.items:
            for search in item.searches:
                searches.append(search)
                rows += [first + index for index in rows_of(search)]
            first += len(item.rows)
        return searches, rows

    def finished(self) -> Iterator[tuple[RunningSearch, list[int]]]:
        """Each search with the rows of the state that its rows continue."""
        first = 0
        for item in self.items:
            for search in item.searches:
                yield search, [first + parent for parent in search.parents]
            first += len(item.rows)


def automaton_state(rules: LogitsRules, forced: Iterable[int]) -> int:
    """The automaton's state after forced tokens, which neither stop a text nor count as forbidden."""
    state = torch.tensor(START_STATE)
    for token in forced:
        state = rules.next_states(state, torch.tensor(token))
        state = torch.tensor(START_STATE) if int(state) in (STOPPED, FORBIDDEN) else state
    return int(state)


def group_items(items: Iterable[PrefillItem]) -> list[list[PrefillItem]]:
    """Group items by shape, in order of arrival."""
    groups: dict[tuple[int, int, bool], list[PrefillItem]] = {}
    for item in items:
        groups.setdefault(item.shape, []).append(item)
    return list(groups.values())
