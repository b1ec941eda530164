"""From texts to texts with an encoder-decoder: encode in batches, search, decode, restore the order (G1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from heedful.generation.search import Hypothesis, beam_search
from heedful.text.special import END, PAD
from heedful.text.tokenizer import Tokenizer


def translate_ids(
    model: Any,
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    tokens: int = 8192,
    at_most: Sequence[int] | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> list[Hypothesis]:
    """The best target found for each source, in the given order.

    Sources of like length share a batch, as many as fit `tokens` with their beams. `at_most` says where to stop each,
    whatever the model would still write.
    """
    device = model.table.weight.device
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    results: dict[int, Hypothesis] = {}
    start = 0
    while start < len(order):
        longest = len(sources[order[start]]) + 1
        size = max(1, tokens // (beam * longest))
        rows = order[start : start + size]
        lengths = torch.tensor([len(sources[i]) + 1 for i in rows])
        batch = torch.full((len(rows), longest), PAD)
        for row, i in enumerate(rows):
            batch[row, : lengths[row]] = torch.tensor([*sources[i], END])
        with torch.inference_mode():
            limits = length_limit(lengths)
            state = model.start(batch.to(device), lengths.to(device), room=int(limits.max()))
            if at_most is not None:
                limits = limits.clamp(max=torch.tensor([at_most[i] for i in rows]))
            found = beam_search(model, state, limits.to(device), beam=beam, length_penalty=length_penalty)
        results |= {i: texts[0] for i, texts in zip(rows, found, strict=True)}
        progress(len(rows))
        start += size
    return [results[i] for i in range(len(sources))]


def length_limit(lengths: torch.Tensor) -> torch.Tensor:
    """No translation is that much longer than its source; a model that will not stop must."""
    return lengths * 2 + 20


def translate_texts(model: Any, tokenizers: tuple[Tokenizer, ...], texts: Sequence[str], **options: Any) -> list[str]:
    found = translate_ids(model, tokenizers[0].encode(list(texts)), **options)
    return tokenizers[-1].decode([hypothesis.tokens for hypothesis in found])
