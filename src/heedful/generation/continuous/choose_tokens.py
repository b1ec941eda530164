"""Choose the next tokens of searches that share a batch, each by its own settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.generation.continuous.running_search import Candidates, RunningBeam, RunningRow, RunningSearch
from heedful.generation.search.beam_search import best_candidates
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.sampling import draw_tokens
from heedful.generation.search.stop_strings import STOPPED
from heedful.shapes import Float
from heedful.text.special_tokens import END


def choose_tokens(searches: Sequence[RunningSearch], log_probabilities: Float[Tensor, "rows vocabulary"]) -> None:
    """Append a token to every search. Their rows are consecutive, in the order of the searches.

    Searches with equal settings are handled together: the cost of a step grows with the number of different settings.
    """
    groups: dict[Hashable, list[tuple[Any, int]]] = {}
    row = 0
    for search in searches:
        groups.setdefault(search.choice, []).append((search, row))
        row += len(search.tokens)
    for members in groups.values():
        chosen = [search for search, _ in members]
        rows = [first + index for search, first in members for index in range(len(search.tokens))]
        scores = log_probabilities if len(rows) == row else log_probabilities[torch.tensor(rows)]
        (_choose_beams if isinstance(chosen[0], RunningBeam) else _choose_rows)(chosen, scores)


def _choose_rows(searches: Sequence[RunningRow], scores: Float[Tensor, "rows vocabulary"]) -> None:
    """Append the greedy choices, or samples from the same distribution with each search's own random stream."""
    settings = searches[0].settings
    states = torch.tensor([search.automaton_states[0] for search in searches], device=scores.device)
    ranked = _apply_rules(settings.rules, searches, scores, states)
    if settings.sampling is None:
        tokens = ranked.argmax(-1)
    else:
        uniform = torch.tensor([float(search.uniform[search.generated]) for search in searches], device=scores.device)
        tokens = draw_tokens(settings.sampling.probabilities(ranked), uniform)
    chosen = scores.gather(1, tokens[:, None])[:, 0].tolist()
    after = settings.rules.next_states(states, tokens).tolist()
    for search, token, log_probability, state in zip(searches, tokens.tolist(), chosen, after, strict=True):
        search.append(token, log_probability, state, ends=token == END or state == STOPPED)


def _choose_beams(searches: Sequence[RunningBeam], scores: Float[Tensor, "rows vocabulary"]) -> None:
    """Append the best continuations of each beam."""
    settings, device = searches[0].settings, scores.device
    states = torch.tensor([state for search in searches for state in search.automaton_states], device=device)
    ranked = _apply_rules(settings.rules, searches, scores, states)
    before = torch.tensor([search.totals for search in searches], device=device)
    totals, rows, tokens = best_candidates(ranked, before, 2 * settings.beam)
    after = settings.rules.next_states(states[rows], tokens)
    ended = (tokens == END) | (after == STOPPED) if settings.rules.automaton else tokens == END
    parents = rows - torch.arange(0, before.numel(), before.shape[1], device=device)[:, None]
    columns = (totals, parents, tokens, scores[rows, tokens], after, ended)
    for search, *candidates in zip(searches, *(column.tolist() for column in columns), strict=True):
        search.append(Candidates(*candidates))


def _apply_rules(rules: LogitsRules, searches: Sequence[RunningSearch], scores: Tensor, states: Tensor) -> Tensor:
    """The scores after the rules; the repetition penalty covers each row's prompt and text."""
    if rules == NO_RULES:
        return scores
    device, rows = scores.device, [(search, row) for search in searches for row in search.tokens]
    tokens = torch.zeros(len(rows), 0, dtype=torch.long, device=device)
    if rules.repetition_penalty != 1.0:
        texts = [[*search.text.prompt, *row] for search, row in rows]
        longest = max(map(len, texts))
        tokens = torch.tensor([text + text[-1:] * (longest - len(text)) for text in texts], device=device)
    generated = torch.tensor([search.generated for search, _ in rows], device=device)
    return rules(scores, tokens, generated, states)
