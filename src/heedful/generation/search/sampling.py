"""Drawing the next token by chance: temperature, top-k, top-p, min-p (G1, G2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.generation.search.beam_search import ARGMAX, TokenChooser, decode
from heedful.generation.search.decode_loop import IncrementalModel
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.layers.kv_cache import DecoderState
from heedful.shapes import Float, Int

SEED_STRIDE = 1_000_003
"""Between the streams of one seed and those of the next."""


@dataclass(frozen=True)
class SamplingConfig:
    """How chance is bounded. Temperature 0 leaves it none."""

    temperature: float = 0.8
    top_k: int = 0
    """Keep the k likeliest; 0: all."""
    top_p: float = 1.0
    """Keep the fewest whose probabilities reach p        Holtzman 2020"""
    min_p: float = 0.0
    """Keep those at least this share as likely as the likeliest        Nguyen 2024"""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise UsageError(
                "temperature must be ≥ 0, top_k ≥ 0, 0 < top_p ≤ 1 and 0 ≤ min_p ≤ 1; "
                f"got {self.temperature}, {self.top_k}, {self.top_p} and {self.min_p}"
            )

    def probabilities(self, scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """The probabilities to draw from, zero for all that is left out."""
        scores = scores / self.temperature
        if self.top_k:
            worst = scores.topk(min(self.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < worst, -torch.inf)
        if self.top_p < 1:
            ordered, places = scores.softmax(-1).sort(descending=True, dim=-1)
            better = ordered.cumsum(-1) - ordered  # what the likelier ones hold together
            beyond = better >= self.top_p
            scores = scores.masked_fill(torch.empty_like(beyond).scatter(1, places, beyond), -torch.inf)
        shares = scores.softmax(-1)
        if self.min_p:
            shares = shares * (shares >= self.min_p * shares.amax(-1, keepdim=True))
        return shares

    def token_chooser(self, texts: int, samples: int, steps: int, device: torch.device) -> TokenChooser | None:
        """Chance for so many samples of each text, in streams that depend on the seed and the sample alone:
        what is drawn for one text is the same in any company."""
        if self.temperature == 0:
            return ARGMAX
        streams = [torch.Generator().manual_seed(SEED_STRIDE * self.seed + number) for number in range(samples)]
        chance = torch.stack([torch.rand(steps, generator=stream) for stream in streams]).repeat(texts, 1).to(device)
        return lambda scores, rows, written: draw_tokens(self.probabilities(scores), chance[rows, written])


def draw_tokens(shares: Float[Tensor, "rows vocabulary"], chance: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The token within whose share of [0, 1) chance falls."""
    sums = shares.cumsum(-1)
    places = torch.searchsorted(sums, chance[:, None] * sums[:, -1:], right=True)[:, 0]
    return torch.where(places < shares.shape[-1], places, shares.argmax(-1))  # rounding can step over the end


def sample(
    model: IncrementalModel,
    state: DecoderState,
    limits: Int[Tensor, " batch"],
    draw: SamplingConfig,
    *,
    samples: int = 1,
    opening: Int[Tensor, "batch tokens"] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    rules: LogitsRules = NO_RULES,
    window: int | None = None,
) -> list[list[Hypothesis]]:
    """Texts drawn for each row. The same seed gives the same texts (G2)."""
    texts = len(limits)
    if samples > 1:
        rows = torch.arange(texts, device=limits.device).repeat_interleave(samples)
        state.reorder(rows, samples)
        limits = limits[rows]
        opening = None if opening is None else opening[rows]
        prefixes = None if prefixes is None else [prefix for prefix in prefixes for _ in range(samples)]
    steps = max(int(limits.max()), max((len(prefix) + 1 for prefix in prefixes or ()), default=0))
    choose = draw.token_chooser(texts, samples, steps, limits.device)
    found = decode(model, state, limits, choose, opening=opening, prefixes=prefixes, rules=rules, window=window)
    return [found[first : first + samples] for first in range(0, len(found), samples)]
