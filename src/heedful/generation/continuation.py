"""Going on from a prompt with a language model: many prompts in batches, or one as it is written (G1, G2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from heedful.generation.backends.cpu_decoder import flattened
from heedful.generation.search.beam_search import beam_search, decode_steps
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.sampling import SamplingConfig, sample
from heedful.text.special_tokens import END, PAD


def generate_ids(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    limit: int,
    draw: SamplingConfig | None = None,
    beam: int = 1,
    length_penalty: float = 1.0,
    n_best: int = 1,
    rules: LogitsRules = NO_RULES,
    exact: bool = False,
    hurry: bool = False,
    tokens: int = 8192,
    progress: Callable[[int], object] = lambda _: None,
) -> list[list[Hypothesis]]:
    """Up to `limit` tokens after each prompt, in the given order: drawn by chance (`draw`), or by beam search.

    Prompts of one length share a batch, so that no row has gaps. An empty prompt begins a new document.
    """
    model = model if exact else flattened(model)
    begun = [list(prompt) or [END] for prompt in prompts]
    window = max_context(model)
    results: dict[int, list[Hypothesis]] = {}
    order = sorted(range(len(begun)), key=lambda i: len(begun[i]))
    rows_each = n_best if draw else beam
    for length, alike in groupby(order, key=lambda i: len(begun[i])):
        same = list(alike)
        size = 1 if exact else max(1, tokens // (rows_each * min(length + limit, window or length + limit)))
        for first in range(0, len(same), size):
            chosen = same[first : first + size]
            opening = torch.tensor([begun[i] for i in chosen], device=model.table.weight.device)
            limits = torch.full((len(chosen),), limit, device=opening.device)
            with torch.inference_mode():
                state = model.start(len(chosen), capacity=room(length + limit, window))
            if draw is None:
                how: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "n_best": n_best, "hurry": hurry}
                found = beam_search(model, state, limits, opening=opening, rules=rules, window=window, **how)
            else:
                found = sample(model, state, limits, draw, samples=n_best, opening=opening, rules=rules, window=window)
            results |= dict(zip(chosen, found, strict=True))
            progress(len(chosen))
    return [results[i] for i in range(len(prompts))]


def generate_tokens(
    model: Any, prompt: Sequence[int], *, limit: int, draw: SamplingConfig, rules: LogitsRules = NO_RULES, exact: bool = False
) -> Iterator[int]:
    """The tokens after one prompt, each as soon as it is chosen; the same ones that `generate_ids` gives."""
    model = model if exact else flattened(model)
    opening = torch.tensor([list(prompt) or [END]], device=model.table.weight.device)
    window = max_context(model)
    with torch.inference_mode():
        state = model.start(1, capacity=room(opening.shape[1] + limit, window))
    limits = torch.tensor([limit], device=opening.device)
    choose = draw.token_chooser(1, 1, limit, opening.device)
    for step in decode_steps(model, state, limits, choose, opening=opening, rules=rules, window=window):
        token = int(step.tokens[0])
        if token in (END, PAD):
            return
        yield token


def max_context(model: Any) -> int | None:
    """Tokens the model was made to see at once; None for a recurrent one, which sees no further than its state."""
    found: int | None = getattr(model.config, "max_length", None)
    return found


def room(needed: int, window: int | None) -> int:
    return needed if window is None else min(needed, window)
