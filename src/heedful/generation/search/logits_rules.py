"""Rules on the scores of the next token: minimum length, repetition penalty, stop strings, forbidden strings.

Rules do not depend on the search: greedy search, beam search and sampling apply the same rules for every model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.generation.search.stop_strings import StringAutomaton
from heedful.shapes import Float, Int
from heedful.text.special_tokens import END


@dataclass(frozen=True)
class LogitsRules:
    """Rules for every row of a batch. The default changes nothing."""

    min_length: int = 0
    """Tokens before END is allowed."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of the prompt and of the text so far become less likely."""
    automaton: StringAutomaton | None = None
    """Stop strings and forbidden strings."""

    def __call__(
        self,
        scores: Float[Tensor, "rows vocabulary"],
        tokens: Int[Tensor, "rows tokens"],
        generated: int | Int[Tensor, " rows"],
        states: Int[Tensor, " rows"],
    ) -> Float[Tensor, "rows vocabulary"]:
        """Apply the rules to the log-probabilities of the next token; −inf = not allowed.

        `generated`: number of tokens generated so far, as one number for all rows or one per row.
        """
        if self.repetition_penalty != 1.0:
            scores = apply_repetition_penalty(scores, tokens, self.repetition_penalty)
        excluded = None
        if self.automaton is not None and self.automaton.forbidden:
            excluded = self.automaton.forbidden_tokens(states)
        if self.min_length:
            excluded = torch.zeros_like(scores, dtype=torch.bool) if excluded is None else excluded
            excluded[:, END] |= torch.as_tensor(generated < self.min_length, device=scores.device)
        if excluded is None:
            return scores
        allowed = scores.masked_fill(excluded, -torch.inf)
        stuck = (allowed == -torch.inf).all(-1)  # no token is allowed: then the text may end
        allowed[:, END] = torch.where(stuck, scores[:, END], allowed[:, END])
        return allowed

    def next_states(self, states: Int[Tensor, "*rows"], tokens: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        """The automaton's states after these tokens."""
        return states if self.automaton is None else self.automaton.next_states(states, tokens)


NO_RULES = LogitsRules()


def apply_repetition_penalty(
    scores: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, "rows tokens"], penalty: float
) -> Float[Tensor, "rows vocabulary"]:
    """log p → θ · log p for every token that occurred        Keskar 2019, 4.1

    The paper scales logits, whose sign depends on an arbitrary offset; log-probabilities have none.
    """
    return scores.scatter(1, tokens, scores.gather(1, tokens) * penalty)
