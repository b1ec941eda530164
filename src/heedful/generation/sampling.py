"""Drawing the next token by chance: temperature, top-k, top-p (G1, G2)."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.generation.search import Extending, log_softmax
from heedful.layers.state import State
from heedful.shapes import Float, Int
from heedful.text.special import END


def choose(
    scores: Float[Tensor, "rows vocabulary"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " rows"]:
    """One token a row. Temperature 0 takes the likeliest; top-k keeps the k likeliest; top-p keeps the
    fewest whose probabilities reach p        Holtzman 2020"""
    if temperature == 0:
        return scores.argmax(-1)
    scores = scores / temperature
    if top_k:
        worst = scores.topk(min(top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < worst, -torch.inf)
    if top_p < 1:
        ordered, places = scores.sort(descending=True, dim=-1)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # what the better ones hold together
        ordered = ordered.masked_fill(before >= top_p, -torch.inf)
        scores = torch.full_like(scores, -torch.inf).scatter(-1, places, ordered)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]


@torch.inference_mode()
def sample(
    model: Extending,
    state: State,
    prompt: Int[Tensor, "1 tokens"],
    *,
    limit: int,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> list[int]:
    """Continue one prompt until END or `limit` more tokens. The same seed gives the same text (G2)."""
    if temperature < 0 or not 0 < top_p <= 1 or top_k < 0:
        raise UsageError(
            f"temperature must be ≥ 0, top_k ≥ 0 and 0 < top_p ≤ 1; got {temperature}, {top_k} and {top_p}"
        )
    generator = torch.Generator(prompt.device).manual_seed(seed)
    text: list[int] = []
    tokens = prompt
    for _ in range(limit):
        scores = log_softmax(model.extend(tokens, state)[:, -1])
        tokens = choose(scores, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)[:, None]
        if int(tokens) == END:
            break
        text.append(int(tokens))
    return text
