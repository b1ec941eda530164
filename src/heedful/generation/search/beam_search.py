"""Beam search over any model that decodes step by step (G1).

Independent of the architecture: it needs only `model.extend` and `state.reorder`, which `DecodingBatch` calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.generation.search.decode_loop import GPU_CHECK_INTERVAL, decode, sample
from heedful.generation.search.decoding_batch import DecodingBatch
from heedful.generation.search.hypotheses import BeamCandidates, BeamHypotheses, BeamStep, Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.layers.kv_cache import DecoderState
from heedful.models.protocols import DecoderModel
from heedful.shapes import Float, Int


def search(
    model: DecoderModel,
    state: DecoderState,
    limits: Int[Tensor, " batch"],
    settings: SearchSettings,
    *,
    prompt: Int[Tensor, "batch tokens"] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    window: int | None = None,
) -> list[list[Hypothesis]]:
    """Run the search of these settings: sampling, greedy or beam; `n_best` hypotheses per row, best first."""
    copies = settings.n_best if settings.sampling else 1
    partial = DecodingBatch(
        model, state, prompt=prompt, prefixes=prefixes, rules=settings.rules, window=window, copies=copies
    )
    if settings.sampling is not None:
        return sample(partial, limits, settings.sampling, copies)
    if settings.beam == 1:
        return [[hypothesis] for hypothesis in decode(partial, limits)]
    return beam_search(partial, limits, settings)


@torch.inference_mode()
def beam_search(
    partial: DecodingBatch, limits: Int[Tensor, " batch"], settings: SearchSettings
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each row, best first, by log P / length^α        Wu 2016, 7 (simplified)

    A row is done when no unfinished hypothesis can still win; with `early_stopping`, when `beam` of them have ended.
    `BeamHypotheses` decides on the CPU which rows are done, at every step or, on a GPU, every `GPU_CHECK_INTERVAL`.
    """
    beam = settings.beam
    finished = BeamHypotheses(partial.raise_limits(limits).tolist(), settings, partial)
    interval = GPU_CHECK_INTERVAL if limits.is_cuda else 1
    totals = partial.log_probabilities.sum(1, keepdim=True)  # one beam per row until it branches
    steps: list[BeamStep] = []
    while True:
        log_probabilities, ranked = partial.score_next_tokens()
        best, beams, tokens = best_candidates(ranked, totals, 2 * beam)  # at most `beam` end, so `beam` continue
        candidates = BeamCandidates(best, beams, tokens, log_probabilities[beams, tokens])
        ended = partial.ends(tokens, beams)
        totals, kept = best.masked_fill(ended, -torch.inf).topk(min(beam, best.shape[1]))
        continuing = BeamCandidates(totals, *(part.gather(1, kept) for part in candidates[1:]))
        steps.append(BeamStep(candidates, ended, continuing))
        if settings.trace is not None:
            settings.trace(steps[-1])
        if len(steps) == interval or partial.generated + 1 >= finished.longest:
            rows_before, rows = len(totals), finished.add(steps)
            steps = []
            if not rows:
                return finished.results
            if len(rows) < rows_before:
                indices = torch.tensor(rows, device=totals.device)
                continuing = BeamCandidates(*(part[indices] for part in continuing))
        totals = continuing.totals
        beams, tokens, log_probabilities = (part.flatten() for part in continuing[1:])
        partial.append(beams, tokens, log_probabilities, totals.shape[1])


def best_candidates(
    ranked: Float[Tensor, "beams vocabulary"], totals: Float[Tensor, "rows beam"], number: int
) -> tuple[Float[Tensor, "rows number"], Int[Tensor, "rows number"], Int[Tensor, "rows number"]]:
    """The best continuations of each row: total log-probability, index of the beam extended, token."""
    rows, beam = totals.shape
    best, tokens = ranked.topk(min(number, ranked.shape[1]))  # per beam, then over all beams of the row
    per_beam = best.shape[1]
    best, indices = (totals[:, :, None] + best.view(rows, beam, per_beam)).flatten(1).topk(min(number, beam * per_beam))
    beams = torch.arange(0, rows * beam, beam, device=ranked.device)[:, None] + indices // per_beam
    return best, beams, tokens.view(rows, -1).gather(1, indices)
