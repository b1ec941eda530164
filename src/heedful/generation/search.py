"""Choosing the words: greedy and beam search over any model that extends a state (G1).

Each search is written once. It knows nothing of attention or recurrence: a model reads tokens into a
state (`extend`) and a state can be reordered; that is all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.layers.state import State
from heedful.shapes import Float, Int
from heedful.text.special import END, PAD, START, UNKNOWN


@runtime_checkable
class Extending(Protocol):
    """Any model that decodes."""

    def extend(self, tokens: Tensor, state: State, lengths: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished text: its tokens (without START and END), log-probability, and score among its rivals."""

    tokens: list[int]
    log_probability: float
    score: float


FORBIDDEN = (PAD, UNKNOWN, START)


@torch.inference_mode()
def greedy(model: Extending, state: State, limits: Int[Tensor, " batch"]) -> list[Hypothesis]:
    """Append the likeliest token until END or the limit; finished rows leave the batch (G1)."""
    rows = torch.arange(len(state.lengths), device=state.lengths.device)
    tokens = torch.full_like(rows, START)
    texts: list[list[int]] = [[] for _ in rows]
    log_probabilities = [0.0] * len(rows)
    for step in range(int(limits.max())):
        scores = log_softmax(model.extend(tokens[:, None], state)[:, -1])
        best, tokens = scores.max(-1)
        for row, token, score in zip(rows.tolist(), tokens.tolist(), best.tolist(), strict=True):
            log_probabilities[row] += score
            if token != END:
                texts[row].append(token)
        going = ((tokens != END) & (step + 1 < limits[rows])).nonzero()[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(rows):
            rows, tokens = rows[going], tokens[going]
            state.reorder(going)
    return [_scored(text, total, len(text) + 1, 1.0) for text, total in zip(texts, log_probabilities, strict=True)]


def log_softmax(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
    """In float32 whatever the model's type, and never a token that cannot be text."""
    logits = logits.float()
    logits[:, list(FORBIDDEN)] = -torch.inf
    return torch.log_softmax(logits, dim=-1)


@torch.inference_mode()
def beam_search(
    model: Extending, state: State, limits: Int[Tensor, " batch"], *, beam: int = 4, length_penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """The `beam` best texts found for each row, best first, by log P / length^α        Wu 2016, 7 (simplified)

    A row stops when no living beam can still beat the worst of its `beam` finished texts: living texts only lose
    probability, and the most a longer text can gain is the penalty at its limit, so this is safe for α ≥ 0.
    """
    if beam == 1:
        return [[text] for text in greedy(model, state, limits)]
    device, batch = state.lengths.device, len(state.lengths)
    state.reorder(torch.arange(batch, device=device).repeat_interleave(beam))
    texts = torch.zeros(batch, beam, 0, dtype=torch.long, device=device)
    totals = torch.full((batch, beam), -torch.inf, device=device)
    totals[:, 0] = 0.0  # all beams start alike: let only one of them speak first
    tokens = torch.full((batch * beam, 1), START, device=device)
    rows = list(range(batch))
    finished: list[list[Hypothesis]] = [[] for _ in rows]
    for length in range(1, int(limits.max()) + 1):
        scores = log_softmax(model.extend(tokens, state)[:, -1]).view(len(rows), beam, -1)
        scores = scores + totals[:, :, None]
        vocabulary = scores.shape[-1]
        best, places = scores.flatten(1).topk(2 * beam)  # at most `beam` of these end, so `beam` go on
        parents, words = places // vocabulary, places % vocabulary
        ended = words == END
        for r, b in (ended & (best > -torch.inf))[:, :beam].nonzero().tolist():
            text = texts[r, parents[r, b]].tolist()
            finished[rows[r]].append(_scored(text, float(best[r, b]), length, length_penalty))
        alive = best.masked_fill(ended, -torch.inf).topk(beam)
        totals, parents, words = alive.values, parents.gather(1, alive.indices), words.gather(1, alive.indices)
        texts = torch.cat([texts.gather(1, parents[:, :, None].expand(-1, -1, length - 1)), words[:, :, None]], dim=2)
        going = []
        for r, row in enumerate(rows):
            finished[row].sort(key=lambda text: -text.score)
            limit = int(limits[row])
            reachable = float(totals[r, 0]) / limit**length_penalty
            if length >= limit:
                finished[row] += [
                    _scored(texts[r, b].tolist(), float(totals[r, b]), length, length_penalty) for b in range(beam)
                ]
                finished[row].sort(key=lambda text: -text.score)
            elif len(finished[row]) < beam or finished[row][beam - 1].score < reachable:
                going.append(r)
        if not going:
            break
        keep = torch.tensor(going, device=device)
        state.reorder((keep[:, None] * beam + parents[keep]).flatten())
        rows = [rows[r] for r in going]
        totals, texts, tokens = totals[keep], texts[keep], words[keep].view(-1, 1)
    return [texts[:beam] for texts in finished]


def _scored(text: list[int], total: float, length: int, penalty: float) -> Hypothesis:
    return Hypothesis(text, total, total / length**penalty)
