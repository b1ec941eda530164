"""Choosing the words: one text a row (greedy, or by chance) and beam search, over any model that extends a state (G1).

Each search is written once. It knows nothing of attention or recurrence: a model reads tokens into a
state (`extend`) and a state can be reordered; that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.generation.draft import Draft, Extending
from heedful.generation.rules import FREE, Rules
from heedful.layers.state import State
from heedful.shapes import Bool, Float, Int
from heedful.text.special import END


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

    @property
    def ended(self) -> bool:
        """By itself, rather than at its limit or at a stop text."""
        return len(self.token_log_probabilities) > len(self.tokens)


Choose = Callable[[Tensor, Tensor, int], Tensor]
"""One token a row, from scores; told which rows of the batch these are, and how many tokens they have written."""


class Step(NamedTuple):
    """One more token for each row that goes on: which row of the batch, which token, how likely."""

    rows: Int[Tensor, " going"]
    tokens: Int[Tensor, " going"]
    log_probabilities: Float[Tensor, " going"]


def walk(
    model: Extending,
    state: State,
    limits: Int[Tensor, " batch"],
    choose: Choose,
    *,
    opening: Int[Tensor, "batch tokens"] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    rules: Rules = FREE,
    window: int | None = None,
) -> Iterator[Step]:
    """Write one text a row, a token at a time, until END, a stop text or the limit; finished rows leave the batch."""
    draft = Draft(model, state, opening=opening, prefixes=prefixes, rules=rules, window=window)
    limits = _room_for(prefixes, limits)
    rows = torch.arange(len(limits), device=limits.device)
    for place in range(draft.written):
        yield Step(rows, draft.texts[:, draft.opening + place], draft.log_probabilities[:, place])
    while len(rows):
        own, ranked = draft.scores()
        tokens = choose(ranked, rows, draft.written)
        likely = own.gather(1, tokens[:, None])[:, 0]
        yield Step(rows, tokens, likely)
        going = (~draft.ends(tokens) & (draft.written + 1 < limits[rows])).nonzero()[:, 0]
        draft.go_on(going if len(going) < len(rows) else None, tokens[going], likely[going])
        rows = rows[going]


def greedy(model: Extending, state: State, limits: Int[Tensor, " batch"], **options: object) -> list[Hypothesis]:
    """Append the likeliest token at every step (G1). Options are those of `walk`."""
    return follow(model, state, limits, lambda scores, rows, written: scores.argmax(-1), **options)


def follow(
    model: Extending, state: State, limits: Int[Tensor, " batch"], choose: Choose, **options: object
) -> list[Hypothesis]:
    """The texts that `walk` writes."""
    steps = list(walk(model, state, limits, choose, **options))  # type: ignore[arg-type]
    texts: list[list[tuple[int, float]]] = [[] for _ in limits]
    for step in steps:  # read when all is written: a device is not made to wait at every step
        for row, token, likely in zip(*(part.tolist() for part in step), strict=True):
            texts[row].append((token, likely))
    return [_found([token for token, _ in text], [likely for _, likely in text]) for text in texts]


def _found(tokens: list[int], log_probabilities: list[float], score: float | None = None) -> Hypothesis:
    """Tokens as written, END included; without a score, the mean log-probability of a token."""
    total = sum(log_probabilities)
    score = total / max(1, len(tokens)) if score is None else score
    return Hypothesis(tokens[:-1] if tokens[-1:] == [END] else tokens, total, score, log_probabilities)


@torch.inference_mode()
def beam_search(
    model: Extending,
    state: State,
    limits: Int[Tensor, " batch"],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    n_best: int | None = None,
    opening: Int[Tensor, "batch tokens"] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    rules: Rules = FREE,
    window: int | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` (all `beam`) texts found for a row, best first, by log P / length^α        Wu 2016, 7 (simplified)

    A row stops when no living text can still be among its best: living texts only lose probability, and the most
    a longer one can gain is the penalty at its limit, so this is safe for α ≥ 0.
    """
    if beam == 1:
        alone = greedy(model, state, limits, opening=opening, prefixes=prefixes, rules=rules, window=window)
        return [[text] for text in alone]
    draft = Draft(model, state, opening=opening, prefixes=prefixes, rules=rules, window=window)
    pools = [Pool(limit, length_penalty, n_best or beam) for limit in _room_for(prefixes, limits).tolist()]
    living = pools
    totals = draft.log_probabilities.sum(1, keepdim=True)  # one beam a row, until it branches
    for length in count(draft.written + 1):
        own, ranked = draft.scores()
        best, rows, words = _candidates(ranked, totals, 2 * beam)  # at most `beam` of these end, so `beam` go on
        likely = own[rows, words]
        ended = draft.ends(words, rows)
        done = ended & (best > -torch.inf)
        done[:, beam:] = False
        _collect(living, draft, done, best, rows, words, likely)
        totals, kept = best.masked_fill(ended, -torch.inf).topk(min(beam, best.shape[1]))
        rows, words, likely = (part.gather(1, kept) for part in (rows, words, likely))
        full = torch.tensor([pool.limit <= length for pool in living], device=totals.device)
        _collect(living, draft, full[:, None] & (totals > -torch.inf), totals, rows, words, likely)
        going = [r for r, best in enumerate(totals[:, 0].tolist()) if not living[r].settled(length, best)]
        if not going:
            return [pool.texts for pool in pools]
        keep = torch.tensor(going, device=totals.device)
        totals, living = totals[keep], [living[r] for r in going]
        draft.go_on(*(part[keep].flatten() for part in (rows, words, likely)))
    raise AssertionError("a row settles at its limit")


class Pool:
    """The best finished texts of one row."""

    def __init__(self, limit: int, length_penalty: float, wanted: int) -> None:
        self.limit, self.length_penalty, self.wanted = limit, length_penalty, wanted
        self.texts: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probabilities: list[float], total: float) -> None:
        score = total / len(tokens) ** self.length_penalty
        self.texts.append(_found(tokens, log_probabilities, score))
        self.texts.sort(key=lambda text: -text.score)
        del self.texts[self.wanted :]

    def settled(self, length: int, best: float) -> bool:
        """Whether texts of this length, the best of them with this total, can change nothing any more."""
        if length >= self.limit or best == -torch.inf:
            return True
        return len(self.texts) == self.wanted and self.texts[-1].score >= best / self.limit**self.length_penalty


def _candidates(
    ranked: Float[Tensor, "beams vocabulary"], totals: Float[Tensor, "rows beam"], number: int
) -> tuple[Float[Tensor, "rows number"], Int[Tensor, "rows number"], Int[Tensor, "rows number"]]:
    """The best ways for each row to go on: their totals, the beams they come from, and their words."""
    rows, beam = totals.shape
    best, words = ranked.topk(min(number, ranked.shape[1]))  # of each beam, then of all
    each = best.shape[1]
    best, places = (totals[:, :, None] + best.view(rows, beam, each)).flatten(1).topk(min(number, beam * each))
    beams = torch.arange(0, rows * beam, beam, device=ranked.device)[:, None] + places // each
    return best, beams, words.view(rows, -1).gather(1, places)


def _collect(
    pools: Sequence[Pool],
    draft: Draft,
    chosen: Bool[Tensor, "rows some"],
    totals: Float[Tensor, "rows some"],
    rows: Int[Tensor, "rows some"],
    words: Int[Tensor, "rows some"],
    likely: Float[Tensor, "rows some"],
) -> None:
    """Put the chosen texts, each with its last word, into their rows' pools."""
    owners = chosen.nonzero()[:, 0].tolist()
    if not owners:
        return
    texts = torch.cat([draft.texts[rows[chosen], draft.opening :], words[chosen][:, None]], dim=1)
    parts = torch.cat([draft.log_probabilities[rows[chosen]], likely[chosen][:, None]], dim=1)
    for owner, tokens, log_probabilities, total in zip(
        owners, texts.tolist(), parts.tolist(), totals[chosen].tolist(), strict=True
    ):
        pools[owner].add(tokens, log_probabilities, total)


def _room_for(prefixes: Sequence[Sequence[int]] | None, limits: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """A limit never cuts what is forced."""
    if prefixes is None:
        return limits
    return torch.maximum(limits, torch.tensor([len(prefix) + 1 for prefix in prefixes], device=limits.device))
