"""What may be written, whoever chooses the words: lengths, repetition, texts that end it and texts that must not occur.

A rule changes scores and knows nothing of the search: greedy, beam and chance obey the same ones, in every family.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.generation.search.stop_strings import START_STATE, FORBIDDEN, STOPPED, StringAutomaton
from heedful.shapes import Bool, Float, Int
from heedful.text.special_tokens import END


@dataclass(frozen=True)
class LogitsRules:
    """Rules for every row of a batch. Without any (the default) scores pass through untouched."""

    min_length: int = 0
    """Tokens before END may come."""
    repetition_penalty: float = 1.0
    """Above 1: a token that was written or read before is worth less."""
    automaton: StringAutomaton | None = None
    """Texts that end the writing, and texts that must not be written."""

    def __call__(
        self,
        scores: Float[Tensor, "rows vocabulary"],
        texts: Int[Tensor, "rows tokens"],
        written: int,
        where: Int[Tensor, " rows"],
    ) -> Float[Tensor, "rows vocabulary"]:
        """Log-probabilities of the next token as the rules see them; −inf: not allowed."""
        if self.repetition_penalty != 1.0:
            scores = apply_repetition_penalty(scores, texts, self.repetition_penalty)
        closed = None
        if self.automaton is not None and self.automaton.forbidding:
            closed = self.automaton.forbidden_tokens(where)
        if written < self.min_length:
            closed = torch.zeros_like(scores, dtype=torch.bool) if closed is None else closed
            closed[:, END] = True
        if closed is None:
            return scores
        allowed = scores.masked_fill(closed, -torch.inf)
        stuck = (allowed == -torch.inf).all(-1)  # nothing else may follow: then the text may end
        allowed[:, END] = torch.where(stuck, scores[:, END], allowed[:, END])
        return allowed

    def initial_states(self, rows: int, device: torch.device) -> Int[Tensor, " rows"]:
        """Where rows that have written nothing stand among the patterns."""
        return torch.full((rows,), START_STATE, device=device)

    def next_states(self, where: Int[Tensor, "*rows"], tokens: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        """Where they stand once these tokens are written."""
        return where if self.automaton is None else self.automaton.next_states(where, tokens)

    def is_stopped(self, where: Int[Tensor, "*rows"]) -> Bool[Tensor, "*rows"]:
        """Whether a text that ends the writing has been written."""
        return where == STOPPED

    def is_matched(self, where: Int[Tensor, "*rows"]) -> Bool[Tensor, "*rows"]:
        """Whether any of the texts has been written."""
        return (where == STOPPED) | (where == FORBIDDEN)


NO_RULES = LogitsRules()


def apply_repetition_penalty(
    scores: Float[Tensor, "rows vocabulary"], texts: Int[Tensor, "rows tokens"], penalty: float
) -> Float[Tensor, "rows vocabulary"]:
    """log p → θ · log p for every token that occurred        Keskar 2019, 4.1

    The paper scales logits, whose sign depends on an offset that means nothing; log-probabilities have none.
    """
    return scores.scatter(1, texts, scores.gather(1, texts) * penalty)
