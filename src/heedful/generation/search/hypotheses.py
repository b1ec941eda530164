"""What a beam search has found: finished texts, and which rows can still find better ones.

The search itself needs none of it, so it need not be kept where the model runs: a GPU's turns come in a few at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.generation.search.decode_loop import PartialHypotheses
from heedful.text.special_tokens import END


@dataclass(frozen=True)
class Hypothesis:
    """A text that was found: its tokens, without START and END, and what they are worth."""

    tokens: list[int]
    log_probability: float
    """By the model alone, whatever rules it was searched under; END included."""
    score: float
    """Among its rivals: by the rules, and by length."""
    token_log_probabilities: list[float]
    """One a token; END's comes last, if the text ended by itself."""

    @classmethod
    def from_tokens(cls, tokens: list[int], log_probabilities: list[float], score: float | None = None) -> Hypothesis:
        """From tokens with END; without a score it is the mean log-probability of a token."""
        total = sum(log_probabilities)
        score = total / max(1, len(tokens)) if score is None else score
        return cls(tokens[:-1] if tokens[-1:] == [END] else tokens, total, score, log_probabilities)

    @property
    def ended(self) -> bool:
        """By itself, rather than at its limit or at a stop text."""
        return len(self.token_log_probabilities) > len(self.tokens)


class Continuations(NamedTuple):
    """Ways for each row to go on: what they are worth in all, the beams they come from, their words, how likely."""

    totals: Any
    beams: Any
    words: Any
    likely: Any
    """Each rows × some: tensors where the model runs, arrays here."""


class BeamStep(NamedTuple):
    """One step of a search: all ways it considered, best first, which of them end a text, and those it goes on with."""

    ways: Continuations
    ended: Any
    staying: Continuations


def to_numpy(turns: Sequence[BeamStep]) -> list[BeamStep]:
    """The same with arrays, in few transfers."""
    both = [ways for turn in turns for ways in (turn.ways, turn.staying)]
    numbers = iter(_together([part for ways in both for part in (ways.totals, ways.likely)]))
    places = iter(_together([part for ways in both for part in (ways.beams, ways.words)]))
    ended = _together([turn.ended for turn in turns])

    def ways() -> Continuations:
        return Continuations(next(numbers), next(places), next(places), next(numbers))

    return [BeamStep(ways(), ends, ways()) for ends in ended]


def _together(parts: Sequence[Tensor]) -> list[Any]:
    ends = np.cumsum([part.numel() for part in parts])[:-1]
    flat = np.split(torch.cat([part.flatten() for part in parts]).cpu().numpy(), ends)
    return [part.reshape(like.shape) for part, like in zip(flat, parts, strict=True)]


class BeamHypotheses:
    """The best finished texts of every row, and the texts being written."""

    def __init__(
        self, limits: Sequence[int], length_penalty: float, wanted: int, draft: PartialHypotheses, enough: int | None = None
    ) -> None:
        self.pools = [FinishedHypotheses(limit, length_penalty, wanted, enough) for limit in limits]
        self.living = self.pools
        self.longest = max(limits, default=0)
        self.words = draft.tokens[:, draft.opening :].cpu().numpy()
        self.likely = draft.log_probabilities.cpu().numpy()

    @property
    def texts(self) -> list[list[Hypothesis]]:
        return [pool.texts for pool in self.pools]

    def enter(self, turns: Sequence[BeamStep], beam: int) -> list[int]:
        """Write down what was found, turn by turn; the rows that go on."""
        settled = [False] * len(self.living)
        for turn in to_numpy(turns):
            self._enter(turn, settled, beam)
        going = [row for row, over in enumerate(settled) if not over]
        if len(going) < len(settled):
            for name in ("words", "likely"):
                held = getattr(self, name)
                setattr(self, name, held.reshape(len(settled), -1, held.shape[1])[going].reshape(-1, held.shape[1]))
            self.living = [self.living[row] for row in going]
        return going

    def _enter(self, turn: BeamStep, settled: list[bool], beam: int) -> None:
        length = self.words.shape[1] + 1
        ways, ended, staying = turn
        done = ended & (ways.totals > -np.inf)
        done[:, beam:] = False
        for row, place in np.argwhere(done).tolist():
            if not settled[row]:
                self._add(row, ways, place)
        for row, (pool, best) in enumerate(zip(self.living, staying.totals[:, 0].tolist(), strict=True)):
            if settled[row]:
                continue
            if pool.limit <= length:
                for place in np.flatnonzero(staying.totals[row] > -np.inf).tolist():
                    self._add(row, staying, place)
            settled[row] = pool.settled(length, best)
        beams = staying.beams.reshape(-1)
        self.words = np.concatenate([self.words[beams], staying.words.reshape(-1, 1)], 1)
        self.likely = np.concatenate([self.likely[beams], staying.likely.reshape(-1, 1)], 1)

    def _add(self, row: int, ways: Continuations, place: int) -> None:
        """A way to go on was the last: the text it ends goes into its row's pool."""
        beam = ways.beams[row, place]
        tokens = [*self.words[beam].tolist(), int(ways.words[row, place])]
        likely = [*self.likely[beam].tolist(), float(ways.likely[row, place])]
        self.living[row].add(tokens, likely, float(ways.totals[row, place]))


class FinishedHypotheses:
    """The best finished texts of one row.

    It has settled when no living text can still be among its best: living texts only lose probability, and the most a
    longer one can gain is the penalty at its limit, so this is safe for α ≥ 0. Or, in a hurry, when `enough` texts
    have ended, as CTranslate2 has it (but with α = 0 it, too, waits for the best).
    """

    def __init__(self, limit: int, length_penalty: float, wanted: int, enough: int | None = None) -> None:
        self.limit, self.length_penalty, self.wanted = limit, length_penalty, wanted
        self.enough = enough if length_penalty else None
        self.ended = 0
        self.texts: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probabilities: list[float], total: float) -> None:
        self.ended += 1
        score = total / len(tokens) ** self.length_penalty
        self.texts.append(Hypothesis.from_tokens(tokens, log_probabilities, score))
        self.texts.sort(key=lambda text: -text.score)
        del self.texts[self.wanted :]

    def settled(self, length: int, best: float) -> bool:
        """Whether texts of this length, the best of them with this total, can change nothing any more."""
        if length >= self.limit or best == -torch.inf:
            return True
        if self.enough is not None:
            return self.ended >= self.enough
        return len(self.texts) == self.wanted and self.texts[-1].score >= best / self.limit**self.length_penalty
