"""Running searches of a continuous batch: a single row (greedy or a sample), or the rows of a beam."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from heedful.generation.continuous.queued_text import QueuedText
from heedful.generation.search.hypotheses import FinishedHypotheses, Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.generation.search.stop_strings import START_STATE
from heedful.text.special_tokens import PAD


class RunningSearch(ABC):
    """One search for one text, with `width` rows in the batch.

    Before each step the rows continue `parents`, rows of the step before.
    """

    def __init__(self, text: QueuedText, number: int, width: int) -> None:
        self.text, self.number, self.width = text, number, width
        self.settings: SearchSettings = text.settings
        self.tokens: list[list[int]] = [[]]
        """Tokens generated, row by row; one row until a beam branches."""
        self.log_probabilities: list[list[float]] = [[]]
        self.automaton_states = [START_STATE]
        self.parents: list[int] = [0]
        self.window_start = 0
        """The first token that the KV cache holds."""
        self.is_done = False

    @property
    def generated(self) -> int:
        return len(self.tokens[0])

    @property
    def limit(self) -> int:
        return self.text.limit

    @property
    def end(self) -> int:
        """Number of tokens of each row, including the prompt; the last token is read in the next step."""
        return len(self.text.prompt) + self.generated

    def unread_window(self, window: int | None) -> list[list[int]]:
        """The tokens to read into a new cache: all, or the last half of the window if they outgrew it."""
        if window is not None and self.end - self.window_start > window:
            self.window_start = self.end - max(1, window // 2)
        return [[*self.text.prompt, *row][self.window_start :] for row in self.tokens]

    def force(self, log_probabilities: Sequence[float], states: Sequence[int]) -> None:
        """Start with the text's forced tokens, given their log-probabilities and the automaton states after them."""
        self.tokens, self.log_probabilities = [list(self.text.forced)], [list(log_probabilities)]
        self.automaton_states = list(states)

    @property
    @abstractmethod
    def choice(self) -> Hashable:
        """Searches with an equal value choose their next tokens together."""

    @abstractmethod
    def hypotheses(self) -> list[Hypothesis]:
        """The result of a finished search."""


class RunningRow(RunningSearch):
    """Greedy search, or one sample."""

    def __init__(self, text: QueuedText, number: int = 0) -> None:
        super().__init__(text, number, 1)
        sampling = self.settings.sampling
        if sampling is not None:
            stream = sampling.random_stream(number)
            self.uniform = torch.rand(self.limit, generator=stream).numpy()

    @property
    def choice(self) -> Hashable:
        sampling = self.settings.sampling
        return sampling and replace(sampling, seed=0), self.settings.rules

    def append(self, token: int, log_probability: float, state: int, *, ends: bool) -> None:
        """Append the chosen token."""
        self.tokens[0].append(token)
        self.log_probabilities[0].append(log_probability)
        self.automaton_states = [state]
        self.is_done = ends or self.generated >= self.limit
        self.text.send(self.tokens[0])

    def hypotheses(self) -> list[Hypothesis]:
        return [Hypothesis.from_tokens(self.tokens[0], self.log_probabilities[0])]


class Candidates(NamedTuple):
    """Continuations of a beam, best first."""

    totals: list[float]
    """Log-probability of the hypothesis with its new token."""
    parents: list[int]
    """The row continued."""
    tokens: list[int]
    log_probabilities: list[float]
    states: list[int]
    """Automaton states after the token."""
    ended: list[bool]


class RunningBeam(RunningSearch):
    """Beam search: one row per hypothesis."""

    def __init__(self, text: QueuedText) -> None:
        super().__init__(text, 0, text.settings.beam)
        self.finished = FinishedHypotheses(self.limit, self.settings)
        self.totals = [0.0]

    @property
    def choice(self) -> Hashable:
        return len(self.tokens), self.width, self.settings.rules

    def force(self, log_probabilities: Sequence[float], states: Sequence[int]) -> None:
        super().force(log_probabilities, states)
        self.totals = [float(torch.tensor(log_probabilities).sum())]

    def append(self, candidates: Candidates) -> None:
        """Finish the hypotheses that end, and continue the best unfinished ones."""
        length = self.generated + 1
        possible = [index for index, total in enumerate(candidates.totals) if total > -torch.inf]
        for index in possible:
            if candidates.ended[index] and index < self.width:  # only the best `width` may end
                self._finish(candidates, index)
        continuing = [index for index in possible if not candidates.ended[index]][: self.width]
        if length >= self.limit:
            for index in continuing:
                self._finish(candidates, index)
        best = candidates.totals[continuing[0]] if continuing else -torch.inf
        self.is_done = self.finished.is_done(length, best)
        if not self.is_done:
            self._continue(candidates, continuing)

    def _finish(self, candidates: Candidates, index: int) -> None:
        parent = candidates.parents[index]
        tokens = [*self.tokens[parent], candidates.tokens[index]]
        log_probabilities = [*self.log_probabilities[parent], candidates.log_probabilities[index]]
        self.finished.add(tokens, log_probabilities, candidates.totals[index])

    def _continue(self, candidates: Candidates, kept: Sequence[int]) -> None:
        """Assign each kept candidate to a row; the scores of unused rows are −inf, so they are never chosen."""
        parents = [candidates.parents[index] for index in kept]
        tokens = [candidates.tokens[index] for index in kept]
        missing = self.width - len(kept)
        pairs = zip(parents, tokens, strict=True)
        self.tokens = [[*self.tokens[parent], token] for parent, token in pairs]
        self.log_probabilities = [
            [*self.log_probabilities[candidates.parents[index]], candidates.log_probabilities[index]] for index in kept
        ]
        self.automaton_states = [candidates.states[index] for index in kept] + [START_STATE] * missing
        self.totals = [candidates.totals[index] for index in kept] + [-torch.inf] * missing
        self.parents = parents + [parents[0]] * missing
        self.tokens += [[*self.tokens[0][:-1], PAD] for _ in range(missing)]
        self.log_probabilities += [self.log_probabilities[0] for _ in range(missing)]

    def hypotheses(self) -> list[Hypothesis]:
        return self.finished.best


def start_searches(text: QueuedText) -> list[RunningSearch]:
    """Create the searches of a text."""
    if text.settings.sampling is None and text.settings.beam > 1:
        return [RunningBeam(text)]
    return [RunningRow(text, number) for number in range(text.searches)]
