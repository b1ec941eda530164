"""Finished hypotheses of a beam search, and when the search for a text can stop.

This bookkeeping runs on the CPU; steps of a GPU are copied over a few at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import NonFiniteError
from heedful.generation.search.decoding_batch import DecodingBatch
from heedful.generation.search.settings import SearchSettings
from heedful.text.special_tokens import END

NO_PROBABILITY = "no token has a probability: the model computes NaN, or every token is forbidden"


@dataclass(frozen=True)
class Hypothesis:
    """Generated tokens without START and END, with their probabilities."""

    tokens: list[int]
    log_probability: float
    """Sum of the model's log-probabilities, END included; logits rules do not change it."""
    score: float
    """The ranking score: log-probability after the logits rules and the length penalty."""
    token_log_probabilities: list[float]
    """One per token; END's comes last if the text ended with END."""

    @classmethod
    def from_tokens(cls, tokens: list[int], log_probabilities: list[float], score: float | None = None) -> Hypothesis:
        """Build from tokens that may end with END; the default score is the mean log-probability per token.

        A model that computes NaN chose none of them: NonFiniteError.
        """
        total = sum(log_probabilities, 0.0)
        if math.isnan(total):
            raise NonFiniteError(NO_PROBABILITY)
        score = total / max(1, len(tokens)) if score is None else score
        return cls(tokens[:-1] if tokens[-1:] == [END] else tokens, total, score, log_probabilities)

    @property
    def ended(self) -> bool:
        """Whether the text ended with END, rather than at its limit or a stop string."""
        return len(self.token_log_probabilities) > len(self.tokens)


class BeamCandidates(NamedTuple):
    """Candidate continuations, each rows × candidates: tensors on the model's device, or NumPy arrays."""

    totals: Any
    """Log-probability of the hypothesis with its new token."""
    beams: Any
    """Index of the hypothesis extended."""
    tokens: Any
    log_probabilities: Any


class BeamStep(NamedTuple):
    """One step of a beam search: all candidates (best first), which of them end a text, and the continuing ones."""

    candidates: BeamCandidates
    ended: Any
    continuing: BeamCandidates


def to_numpy(steps: Sequence[BeamStep]) -> list[BeamStep]:
    """Copy steps to NumPy arrays in three transfers."""
    groups = [candidates for step in steps for candidates in (step.candidates, step.continuing)]
    floats = iter(_transfer([part for group in groups for part in (group.totals, group.log_probabilities)]))
    indices = iter(_transfer([part for group in groups for part in (group.beams, group.tokens)]))
    ended = _transfer([step.ended for step in steps])

    def candidates() -> BeamCandidates:
        return BeamCandidates(next(floats), next(indices), next(indices), next(floats))

    return [BeamStep(candidates(), ends, candidates()) for ends in ended]


def _transfer(parts: Sequence[Tensor]) -> list[Any]:
    boundaries = np.cumsum([part.numel() for part in parts])[:-1]
    arrays = np.split(torch.cat([part.flatten() for part in parts]).cpu().numpy(), boundaries)
    return [array.reshape(part.shape) for array, part in zip(arrays, parts, strict=True)]


class BeamHypotheses:
    """The finished hypotheses of every row, and the tokens of the unfinished ones."""

    def __init__(self, limits: Sequence[int], settings: SearchSettings, partial: DecodingBatch) -> None:
        self.beam = settings.beam
        self.rows = [FinishedHypotheses(limit, settings) for limit in limits]
        self.active = self.rows
        self.longest = max(limits, default=0)
        self.tokens = partial.tokens[:, partial.prompt_length :].cpu().numpy()
        self.log_probabilities = partial.log_probabilities.cpu().numpy()

    @property
    def results(self) -> list[list[Hypothesis]]:
        if not all(row.best for row in self.rows):
            raise NonFiniteError(NO_PROBABILITY)
        return [row.best for row in self.rows]

    def add(self, steps: Sequence[BeamStep]) -> list[int]:
        """Record the hypotheses that ended in these steps; return the indices of the rows that are not done."""
        done = [False] * len(self.active)
        for step in to_numpy(steps):
            self._add_step(step, done)
        rows = [row for row, is_done in enumerate(done) if not is_done]
        if len(rows) < len(done):
            self.tokens = _select_rows(self.tokens, len(done), rows)
            self.log_probabilities = _select_rows(self.log_probabilities, len(done), rows)
            self.active = [self.active[row] for row in rows]
        return rows

    def _add_step(self, step: BeamStep, done: list[bool]) -> None:
        length = self.tokens.shape[1] + 1
        candidates, ended, continuing = step
        finished = ended & (candidates.totals > -np.inf)
        finished[:, self.beam :] = False
        for row, index in np.argwhere(finished).tolist():
            if not done[row]:
                self._finish(row, candidates, index)
        for row, (hypotheses, best) in enumerate(zip(self.active, continuing.totals[:, 0].tolist(), strict=True)):
            if done[row]:
                continue
            if hypotheses.limit <= length:
                for index in np.flatnonzero(continuing.totals[row] > -np.inf).tolist():
                    self._finish(row, continuing, index)
            done[row] = hypotheses.is_done(length, best)
        beams = continuing.beams.reshape(-1)
        self.tokens = np.concatenate([self.tokens[beams], continuing.tokens.reshape(-1, 1)], 1)
        log_probabilities = continuing.log_probabilities.reshape(-1, 1)
        self.log_probabilities = np.concatenate([self.log_probabilities[beams], log_probabilities], 1)

    def _finish(self, row: int, candidates: BeamCandidates, index: int) -> None:
        beam = candidates.beams[row, index]
        tokens = [*self.tokens[beam].tolist(), int(candidates.tokens[row, index])]
        log_probabilities = [*self.log_probabilities[beam].tolist(), float(candidates.log_probabilities[row, index])]
        self.active[row].add(tokens, log_probabilities, float(candidates.totals[row, index]))


def _select_rows(array: Any, number: int, rows: Sequence[int]) -> Any:
    """Keep these of `number` rows, each with all its beams."""
    return array.reshape(number, -1, array.shape[1])[rows].reshape(-1, array.shape[1])


class FinishedHypotheses:
    """The best finished hypotheses of one text.

    Its search stops when no unfinished hypothesis can still be among the best. Such a hypothesis only loses probability
    as it grows, and gains at most the length normalization at its limit, so for α ≥ 0 no better result is lost. With
    early stopping it stops when `beam` hypotheses have ended, as in CTranslate2 (which with α = 0 also waits for the
    best one).
    """

    def __init__(self, limit: int, settings: SearchSettings) -> None:
        self.limit, self.length_penalty, self.n_best = limit, settings.length_penalty, settings.n_best
        self.enough = settings.beam if settings.early_stopping and settings.length_penalty else None
        self.ended = 0
        self.best: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probabilities: list[float], total: float) -> None:
        self.ended += 1
        score = total / len(tokens) ** self.length_penalty
        self.best.append(Hypothesis.from_tokens(tokens, log_probabilities, score))
        self.best.sort(key=lambda hypothesis: -hypothesis.score)
        del self.best[self.n_best :]

    def is_done(self, length: int, best_total: float) -> bool:
        """Whether unfinished hypotheses of this length, the best with this total, can no longer change the result."""
        if length >= self.limit or best_total == -torch.inf:
            return True
        if self.enough is not None:
            return self.ended >= self.enough
        return len(self.best) == self.n_best and self.best[-1].score >= best_total / self.limit**self.length_penalty
