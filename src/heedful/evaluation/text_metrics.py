"""Text metrics: BLEU and chrF by sacreBLEU, exact match, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Scores:
    """Base of the dataclasses of scores."""

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, without those that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class TextScores(Scores):
    """Scores of hypotheses against references, with the signatures needed to compare them."""

    bleu: float
    bleu_low: float
    """Lower end of the 95% bootstrap interval."""
    bleu_high: float
    bleu_signature: str
    bleu_lowercased: float
    chrf: float
    chrf_signature: str
    exact_match: float
    """Share of texts equal to their reference."""
    texts: int


def text_scores(outputs: Sequence[str], references: Sequence[str], *, samples: int = 1000) -> TextScores:
    """Compute cased, detokenized BLEU (Papineni 2002; Post 2018), chrF (Popović 2015) and exact match.

    The confidence interval is a seeded bootstrap over texts (Koehn 2004).
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    texts, reference_lists = list(outputs), [list(references)]
    bootstrap = {"n_bootstrap": samples} if samples else {}
    score = bleu.corpus_score(texts, reference_lists, **bootstrap)
    half_width = float(getattr(score, "_ci", 0.0) or 0.0)
    mean = float(getattr(score, "_mean", score.score) if samples else score.score)
    return TextScores(
        bleu=float(score.score),
        bleu_low=mean - half_width,
        bleu_high=mean + half_width,
        bleu_signature=str(bleu.get_signature()),
        bleu_lowercased=float(BLEU(lowercase=True).corpus_score(texts, reference_lists).score),
        chrf=float(chrf.corpus_score(texts, reference_lists).score),
        chrf_signature=str(chrf.get_signature()),
        exact_match=sum(a == b for a, b in zip(texts, references, strict=True)) / max(1, len(texts)),
        texts=len(texts),
    )


def sample_bleu(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Compute BLEU alone, to monitor a run."""
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU().corpus_score(list(outputs), [list(references)]).score)


@dataclass(frozen=True)
class PredictionScores(Scores):
    """Negative log-likelihood of a text in its usual forms; lower is better."""

    loss: float
    """Nats per token."""
    perplexity: float
    """exp(loss): per token, so comparable only under one tokenizer."""
    word_perplexity: float
    """Per whitespace-separated word."""
    bits_per_byte: float
    """Per UTF-8 byte: comparable across tokenizers."""
    tokens: int
    words: int
    bytes: int


def prediction_scores(nats: float, tokens: int, words: int, size: int) -> PredictionScores:
    """Convert the summed negative log-likelihood of a text to per-token, per-word and per-byte metrics."""
    return PredictionScores(
        loss=nats / max(1, tokens),
        perplexity=safe_exp(nats / max(1, tokens)),
        word_perplexity=safe_exp(nats / max(1, words)),
        bits_per_byte=nats / max(1, size) / math.log(2),
        tokens=tokens,
        words=words,
        bytes=size,
    )


def safe_exp(x: float) -> float:
    """Return exp(x), or infinity on overflow."""
    return math.exp(x) if x < 700 else math.inf
