"""From token ids to token ids with an encoder-decoder: encode in batches, search, restore the order (G1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.data.batching import length_buckets
from heedful.data.collate import pad_sequences
from heedful.generation.backends.cpu_decoder import flattened
from heedful.generation.search.beam_search import beam_search
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import NO_RULES, LogitsRules
from heedful.generation.search.sampling import SamplingConfig, sample
from heedful.shapes import Int
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer

AT_ONCE = {"cuda": 1 << 15}
"""Tokens of sources in a batch, with their beams and padding; 8,192 on other devices."""


def translate_ids(
    model: Any,
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    n_best: int = 1,
    draw: SamplingConfig | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    at_most: Sequence[int] | int | None = None,
    rules: LogitsRules = NO_RULES,
    exact: bool = False,
    hurry: bool = False,
    tokens: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> list[list[Hypothesis]]:
    """The `n_best` targets found for each source, in the given order: by beam search, or drawn by chance (`draw`).

    Sources of like length share a batch, as many as fit `tokens` with their beams. `exact` gives each a batch of its
    own: matrix products round differently in other company, so only then is every bit of a result the same whatever
    else was asked for. In a `hurry`, a beam search stops as CTranslate2's does. `at_most` says where to stop each, or
    all, instead of well past any sensible length.
    """
    model = model if exact else flattened(model)
    results: dict[int, list[Hypothesis]] = {}
    rows_each, device = beam if draw is None else n_best, model.table.weight.device
    tokens = 0 if exact else (tokens or AT_ONCE.get(device.type, 8192)) // rows_each
    for bucket in length_buckets([len(source) + 1 for source in sources], tokens, longest_first=True):
        chosen = bucket.tolist()
        source, lengths = pad_sequences([sources[i] for i in chosen], end=END, device=device)
        limits = within_positions(model, _limits(at_most, chosen, lengths))
        prefix = None if prefixes is None else [prefixes[i] for i in chosen]
        with torch.inference_mode():
            state = model.start(source, lengths, capacity=int(limits.max()))
        if draw is None:
            how: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "n_best": n_best, "hurry": hurry}
            found = beam_search(model, state, limits, prefixes=prefix, rules=rules, **how)
        else:
            found = sample(model, state, limits, draw, samples=n_best, prefixes=prefix, rules=rules)
        results |= dict(zip(chosen, found, strict=True))
        progress(len(chosen))
    return [results[i] for i in range(len(sources))]


def _limits(at_most: Sequence[int] | int | None, chosen: Sequence[int], lengths: Tensor) -> Tensor:
    if at_most is None:
        return length_limit(lengths)
    return lengths.new_tensor([at_most if isinstance(at_most, int) else at_most[i] for i in chosen])


def length_limit(lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """No translation is that much longer than its source; a model that will not stop must."""
    return lengths * 2 + 20


def within_positions(model: Any, limits: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """A text must end where the positions do."""
    return limits.clamp(max=model.config.max_length) if has_end_of_positions(model) else limits


def has_end_of_positions(model: Any) -> bool:
    """Whether the model has a table of positions, which ends somewhere (P2)."""
    return getattr(model.config, "positions", None) == "learned"


def translate_texts(model: Any, tokenizers: tuple[Tokenizer, ...], texts: Sequence[str], **options: Any) -> list[str]:
    """The best translation of each text."""
    found = translate_ids(model, tokenizers[0].encode(list(texts)), **options)
    return tokenizers[-1].decode([best.tokens for best, *_ in found])
