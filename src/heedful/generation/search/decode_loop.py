"""The decode loop of one hypothesis per row: greedy search and sampling (G1, G2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.generation.search.decoding_batch import DecodingBatch
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.sampling import SamplingConfig, TokenChooser
from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD

GPU_CHECK_INTERVAL = 8
"""Decode steps on a GPU between two checks for finished rows."""


class DecodeStep(NamedTuple):
    """One more token for each unfinished row: the row's index in the batch, the token, its log-probability."""

    rows: Int[Tensor, " active"]
    tokens: Int[Tensor, " active"]
    log_probabilities: Float[Tensor, " active"]


def decode_steps(
    hypotheses: DecodingBatch, limits: Int[Tensor, " rows"], choose: TokenChooser | None = None
) -> Iterator[DecodeStep]:
    """Generate token by token until END, a stop string or the limit; finished rows leave the batch.

    Without `choose` the search is greedy. On a GPU, finished rows are looked up only every few steps, so that it
    never waits for the CPU; until then a finished row generates PAD, which is not part of its text.
    """
    limits = hypotheses.raise_limits(limits)
    longest = int(limits.max()) if len(limits) else 0
    rows = torch.arange(len(limits), device=limits.device)
    for step in range(hypotheses.generated):
        tokens = hypotheses.tokens[:, hypotheses.prompt_length + step]
        yield DecodeStep(rows, tokens, hypotheses.log_probabilities[:, step])
    interval = GPU_CHECK_INTERVAL if limits.is_cuda else 1
    active = torch.ones_like(rows, dtype=torch.bool)
    for step in count(1):
        if not len(rows):
            return
        if choose is None:
            tokens, log_probabilities = hypotheses.argmax_tokens()
        else:
            scores = hypotheses.score_next_tokens()
            tokens = choose(scores.ranked, rows, hypotheses.generated)
            log_probabilities = scores.log_probabilities.gather(1, tokens[:, None])[:, 0]
        tokens = tokens if interval == 1 else tokens.where(active, PAD)
        yield DecodeStep(rows, tokens, log_probabilities)
        if hypotheses.generated + 1 >= longest:
            return
        active = active & ~hypotheses.ends(tokens) & (limits > hypotheses.generated + 1)
        kept = active.nonzero()[:, 0] if step % interval == 0 else None
        if kept is None or len(kept) == len(rows):
            hypotheses.append(None, tokens, log_probabilities)
        else:
            hypotheses.append(kept, tokens[kept], log_probabilities[kept])
            rows, active, limits = rows[kept], active[kept], limits[kept]


def decode(
    hypotheses: DecodingBatch, limits: Int[Tensor, " rows"], choose: TokenChooser | None = None
) -> list[Hypothesis]:
    """Run `decode_steps` to the end: one hypothesis per row, greedy without `choose`."""
    steps = list(decode_steps(hypotheses, limits, choose))
    texts: list[list[tuple[int, float]]] = [[] for _ in limits]
    if steps:  # copied from the device once, at the end, so that no step waits for it
        columns = (torch.cat(column).tolist() for column in zip(*steps, strict=True))
        for row, token, log_probability in zip(*columns, strict=True):
            if token != PAD or math.isnan(log_probability):  # the best of NaN is the first token, which is PAD
                texts[row].append((token, log_probability))
    return [Hypothesis.from_tokens([token for token, _ in text], [value for _, value in text]) for text in texts]


def sample(
    hypotheses: DecodingBatch, limits: Int[Tensor, " texts"], sampling: SamplingConfig, samples: int
) -> list[list[Hypothesis]]:
    """Sample hypotheses for each text, which has `samples` rows. The same seed gives the same texts (G2)."""
    limits = hypotheses.raise_limits(limits.repeat_interleave(samples))
    choose = sampling.token_chooser(len(limits) // samples, samples, int(limits.max()), limits.device)
    results = decode(hypotheses, limits, choose)
    return [results[first : first + samples] for first in range(0, len(results), samples)]
