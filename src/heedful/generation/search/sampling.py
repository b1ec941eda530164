"""Sampling of the next token: temperature, top-k, top-p, min-p (G1, G2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.shapes import Float, Int

MAX_SEED = 2**63
"""Upper bound of the seeds of torch's generators."""
SEED_STRIDE = 1_000_003
"""Offset between the random streams of consecutive seeds."""

TokenChooser = Callable[[Tensor, Tensor, int], Tensor]
"""Choose one token per row from (scores, index of each row in the batch, tokens generated so far)."""


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling settings, checked by `DecodingConfig`."""

    temperature: float = 0.8
    top_k: int = 0
    """Sample from the k most likely tokens; 0 = all."""
    top_p: float = 1.0
    """Sample from the fewest tokens whose probabilities sum to p        Holtzman 2020"""
    min_p: float = 0.0
    """Sample from tokens with at least this fraction of the highest probability        Nguyen 2024"""
    seed: int = 0

    def probabilities(self, scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """The distribution to sample from: zero for every token that top-k, top-p or min-p excludes."""
        scores = scores / self.temperature
        if self.top_k:
            kth_best = scores.topk(min(self.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < kth_best, -torch.inf)
        if self.top_p < 1:
            ordered, indices = scores.softmax(-1).sort(descending=True, dim=-1)
            excluded = ordered.cumsum(-1) - ordered >= self.top_p  # the tokens ranked above already sum to p
            scores = scores.masked_fill(torch.empty_like(excluded).scatter(1, indices, excluded), -torch.inf)
        probabilities = scores.softmax(-1)
        if self.min_p:
            probabilities = probabilities * (probabilities >= self.min_p * probabilities.amax(-1, keepdim=True))
        return probabilities

    def random_stream(self, number: int) -> torch.Generator:
        """The random numbers of a text's sample, by its number."""
        return torch.Generator().manual_seed((SEED_STRIDE * self.seed + number) % MAX_SEED)

    def token_chooser(self, texts: int, samples: int, steps: int, device: torch.device) -> TokenChooser:
        """Sample `samples` hypotheses per text.

        Each random stream depends on the seed and the sample's number alone, so that a text's samples do not depend
        on the other texts of its batch.
        """
        streams = [self.random_stream(number) for number in range(samples)]
        uniform = torch.stack([torch.rand(steps, generator=stream) for stream in streams]).repeat(texts, 1).to(device)
        return lambda scores, rows, generated: draw_tokens(self.probabilities(scores), uniform[rows, generated])


def draw_tokens(
    probabilities: Float[Tensor, "rows vocabulary"], uniform: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Inverse-transform sampling: the token whose part of the cumulative distribution holds `uniform`."""
    cumulative = probabilities.cumsum(-1)
    tokens = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    return torch.where(tokens < probabilities.shape[-1], tokens, probabilities.argmax(-1))  # rounding may overshoot
