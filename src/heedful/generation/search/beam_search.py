"""Choosing the words: one text a row (greedy, or by chance) and beam search, over any model that extends a state (G1).

Each search is written once. It knows nothing of attention or recurrence: a model reads tokens into a
state (`extend`) and a state can be reordered; that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.generation.search.decode_loop import PartialHypotheses, IncrementalModel
from heedful.generation.search.hypotheses import Hypothesis, BeamHypotheses, BeamStep, Continuations
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.layers.kv_cache import DecoderState
from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD

GPU_CHECK_INTERVAL = 8
"""Steps of a GPU between two questions who has finished."""


TokenChooser = Callable[[Tensor, Tensor, int], Tensor]
"""One token a row, from scores; told which rows of the batch these are, and how many tokens they have written."""
ARGMAX = None
"""Instead: the one with the highest score."""


class DecodeStep(NamedTuple):
    """One more token for each row that goes on: which row of the batch, which token, how likely."""

    rows: Int[Tensor, " going"]
    tokens: Int[Tensor, " going"]
    log_probabilities: Float[Tensor, " going"]


def decode_steps(
    model: IncrementalModel,
    state: DecoderState,
    limits: Int[Tensor, " batch"],
    choose: TokenChooser | None,
    *,
    opening: Int[Tensor, "batch tokens"] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    rules: LogitsRules = NO_RULES,
    window: int | None = None,
) -> Iterator[DecodeStep]:
    """Write one text a row, a token at a time, until END, a stop text or the limit; finished rows leave the batch.

    A GPU is asked only now and then who has finished, so that it never waits for the answer: until then a finished row
    goes on with PADs, which are no part of its text.
    """
    draft = PartialHypotheses(model, state, opening=opening, prefixes=prefixes, rules=rules, window=window)
    limits = _room_for(prefixes, limits)
    longest = int(limits.max()) if len(limits) else 0
    rows = torch.arange(len(limits), device=limits.device)
    for place in range(draft.written):
        yield DecodeStep(rows, draft.tokens[:, draft.opening + place], draft.log_probabilities[:, place])
    every = GPU_CHECK_INTERVAL if limits.is_cuda else 1
    alive = torch.ones_like(rows, dtype=torch.bool)
    for turn in count(1):
        if not len(rows):
            return
        if choose is None:
            tokens, likely = draft.argmax_tokens()
        else:
            own, ranked = draft.scores()
            tokens = choose(ranked, rows, draft.written)
            likely = own.gather(1, tokens[:, None])[:, 0]
        tokens = tokens if every == 1 else tokens.where(alive, PAD)
        yield DecodeStep(rows, tokens, likely)
        if draft.written + 1 >= longest:
            return
        alive = alive & ~draft.ends(tokens) & (limits > draft.written + 1)
        going = alive.nonzero()[:, 0] if turn % every == 0 else None
        if going is None or len(going) == len(rows):
            draft.append(None, tokens, likely)
        else:
            draft.append(going, tokens[going], likely[going])
            rows, alive, limits = rows[going], alive[going], limits[going]


def greedy(model: IncrementalModel, state: DecoderState, limits: Int[Tensor, " batch"], **options: object) -> list[Hypothesis]:
    """Append the likeliest token at every step (G1). Options are those of `walk`."""
    return decode(model, state, limits, ARGMAX, **options)


def decode(
    model: IncrementalModel, state: DecoderState, limits: Int[Tensor, " batch"], choose: TokenChooser | None, **options: object
) -> list[Hypothesis]:
    """The texts that `walk` writes."""
    steps = list(decode_steps(model, state, limits, choose, **options))  # type: ignore[arg-type]
    texts: list[list[tuple[int, float]]] = [[] for _ in limits]
    if steps:  # read when all is written, at once: a device is not made to wait at every step
        for row, token, likely in zip(*(torch.cat(parts).tolist() for parts in zip(*steps, strict=True)), strict=True):
            if token != PAD:
                texts[row].append((token, likely))
    return [Hypothesis.from_tokens([token for token, _ in text], [likely for _, likely in text]) for text in texts]


@torch.inference_mode()
def beam_search(
    model: IncrementalModel,
    state: DecoderState,
    limits: Int[Tensor, " batch"],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    n_best: int | None = None,
    opening: Int[Tensor, "batch tokens"] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    rules: LogitsRules = NO_RULES,
    window: int | None = None,
    hurry: bool = False,
) -> list[list[Hypothesis]]:
    """The `n_best` (all `beam`) texts found for a row, best first, by log P / length^α        Wu 2016, 7 (simplified)

    A row is done when nothing better can be found; in a `hurry`, when `beam` of its texts have ended.

    The device goes on by itself; what it found is entered in a ledger, which says which rows have settled: at every
    step, or of a GPU only now and then, so that it never waits.
    """
    if beam == 1:
        alone = greedy(model, state, limits, opening=opening, prefixes=prefixes, rules=rules, window=window)
        return [[text] for text in alone]
    draft = PartialHypotheses(model, state, opening=opening, prefixes=prefixes, rules=rules, window=window)
    limit = _room_for(prefixes, limits).tolist()
    ledger = BeamHypotheses(limit, length_penalty, n_best or beam, draft, enough=beam if hurry else None)
    every = GPU_CHECK_INTERVAL if limits.is_cuda else 1
    totals = draft.log_probabilities.sum(1, keepdim=True)  # one beam a row, until it branches
    turns: list[BeamStep] = []
    while True:
        own, ranked = draft.scores()
        best, rows, words = _candidates(ranked, totals, 2 * beam)  # at most `beam` of these end, so `beam` go on
        ways = Continuations(best, rows, words, own[rows, words])
        ended = draft.ends(words, rows)
        totals, kept = best.masked_fill(ended, -torch.inf).topk(min(beam, best.shape[1]))
        staying = Continuations(totals, *(part.gather(1, kept) for part in ways[1:]))
        turns.append(BeamStep(ways, ended, staying))
        if len(turns) == every or draft.written + 1 >= ledger.longest:
            before, going = len(totals), ledger.enter(turns, beam)
            turns = []
            if not going:
                return ledger.texts
            if len(going) < before:
                staying = Continuations(*(part[torch.tensor(going, device=totals.device)] for part in staying))
        totals = staying.totals
        beams, words, likely = (part.flatten() for part in staying[1:])
        draft.append(beams, words, likely, totals.shape[1])


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


def _room_for(prefixes: Sequence[Sequence[int]] | None, limits: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """A limit never cuts what is forced."""
    if prefixes is None:
        return limits
    return torch.maximum(limits, torch.tensor([len(prefix) + 1 for prefix in prefixes], device=limits.device))
