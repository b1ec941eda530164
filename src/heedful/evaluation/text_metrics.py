"""Text metrics: BLEU and chrF by sacreBLEU, exact match, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SAMPLES = 1000
"""Samples of the bootstrap."""


def text_scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Compute cased, detokenized BLEU (Papineni 2002; Post 2018), chrF (Popović 2015) and exact match.

    The 95% confidence interval is a seeded bootstrap over texts (Koehn 2004). The signatures say what to compare with.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    texts, reference_lists = list(outputs), [list(references)]
    score: Any = bleu.corpus_score(texts, reference_lists, n_bootstrap=SAMPLES)
    mean, half_width = float(score._mean), float(score._ci)
    return {
        "bleu": float(score.score),
        "bleu_low": mean - half_width,
        "bleu_high": mean + half_width,
        "bleu_signature": str(bleu.get_signature()),
        "bleu_lowercased": float(BLEU(lowercase=True).corpus_score(texts, reference_lists).score),
        "chrf": float(chrf.corpus_score(texts, reference_lists).score),
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": sum(a == b for a, b in zip(texts, references, strict=True)) / max(1, len(texts)),
        "texts": len(texts),
    }


def sample_bleu(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Compute BLEU alone, to monitor a run."""
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU().corpus_score(list(outputs), [list(references)]).score)


def prediction_scores(nats: float, tokens: int, words: int, size: int) -> dict[str, Any]:
    """Convert the summed negative log-likelihood of a text to its usual forms; lower is better."""
    return {
        "loss": nats / max(1, tokens),
        "perplexity": safe_exp(nats / max(1, tokens)),  # comparable only under one tokenizer
        "word_perplexity": safe_exp(nats / max(1, words)),  # per whitespace-separated word
        "bits_per_byte": nats / max(1, size) / math.log(2),  # per UTF-8 byte: comparable across tokenizers
        "tokens": tokens,
        "words": words,
        "bytes": size,
    }


def safe_exp(x: float) -> float:
    """Return exp(x), or infinity on overflow."""
    return math.exp(x) if x < 700 else math.inf
