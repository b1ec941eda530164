"""Record cross-attention of one validation pair at every evaluation, to show how alignment forms in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.inspection.attention_alignment import (
    TranslationModel,
    cross_attention_weights,
    has_cross_attention,
    word_weights,
)
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import Unit, split_words, tokenize_words

MOST_WORDS = 24


def choose_sample_pair(pairs: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The longest validation pair whose attention fits a small picture; None if none does."""
    fitting = [pair for pair in pairs if all(len(split_words(text)) <= MOST_WORDS for text in pair)]
    return max(fitting, key=lambda pair: sum(map(len, map(split_words, pair))), default=None)


def attention_sample(
    model: TranslationModel, pair: Sequence[str], tokenizers: Sequence[Tokenizer]
) -> dict[str, Any] | None:
    """Each layer's cross-attention (mean of its heads) from target to source words; None for models without it."""
    if not has_cross_attention(model):
        return None
    units: list[Unit] = ["words" if len(split_words(text)) > 1 else "characters" for text in pair]
    source, target = (
        tokenize_words(text, tokenizer, unit)
        for text, tokenizer, unit in zip(pair, (tokenizers[0], tokenizers[-1]), units, strict=True)
    )
    ((_, tables),) = cross_attention_weights(model, [(source, target)])
    layers = {
        tap.removesuffix(".weights"): word_weights(table.mean(0), source, target)[:, :-1]
        for tap, table in tables.items()
    }
    return {
        "source": list(source.words),
        "target": list(target.words),
        "layers": {name: weights.astype(float).round(3).tolist() for name, weights in layers.items()},
    }
