"""Text metrics: BLEU and chrF by sacreBLEU, exact match, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heedful.data.text_size import TextSize
from heedful.evaluation.bleu_tokenizer import BleuTokenizer, choose_bleu_tokenizer, make_bleu

SAMPLES = 1000
"""Samples of the bootstrap."""


def text_scores(
    outputs: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer | None = None
) -> dict[str, Any]:
    """Compute cased, detokenized BLEU (Papineni 2002; Post 2018), chrF (Popović 2015) and exact match.

    The 95% confidence interval is a seeded bootstrap over texts (Koehn 2004). The signatures say what to compare with.
    """
    from sacrebleu.metrics.chrf import CHRF

    tokenizer = tokenizer or choose_bleu_tokenizer(references)
    bleu, chrf = make_bleu(tokenizer.name), CHRF()
    texts, reference_lists = list(outputs), [list(references)]
    score: Any = bleu.corpus_score(texts, reference_lists, n_bootstrap=SAMPLES)
    mean, half_width = float(score._mean), float(score._ci)
    return {
        "bleu": float(score.score),
        "bleu_low": max(0.0, mean - half_width),
        "bleu_high": min(100.0, mean + half_width),
        "bleu_signature": str(bleu.get_signature()),
        **({"bleu_note": tokenizer.note} if tokenizer.note else {}),
        "bleu_lowercased": float(make_bleu(tokenizer.name, lowercase=True).corpus_score(texts, reference_lists).score),
        "chrf": float(chrf.corpus_score(texts, reference_lists).score),
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": sum(a == b for a, b in zip(texts, references, strict=True)) / max(1, len(texts)),
        "texts": len(texts),
    }


@dataclass(frozen=True)
class SampleScores:
    """BLEU and chrF alone, to monitor a run, and whether any 4-gram matches."""

    bleu: float
    chrf: float
    has_matches: bool

    def selection(self, loss: float) -> float:
        """The score that selects a checkpoint: BLEU, or where no 4-gram matches the negative loss, below every BLEU.

        Without a match BLEU is 0, or the value of its smoothing, and does not tell models apart.
        """
        return self.bleu if self.has_matches else -loss


def sample_scores(outputs: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer) -> SampleScores:
    """Score a sample of translations."""
    from sacrebleu.metrics.chrf import CHRF

    texts, reference_lists = list(outputs), [list(references)]
    bleu = make_bleu(tokenizer.name).corpus_score(texts, reference_lists)
    chrf = CHRF().corpus_score(texts, reference_lists)
    return SampleScores(float(bleu.score), float(chrf.score), bleu.counts[-1] > 0)


def prediction_scores(nats: float, tokens: int, size: TextSize) -> dict[str, Any]:
    """Convert the summed negative log-likelihood of a text to its usual forms; lower is better.

    Text whose words cannot be counted has bits per character instead of a perplexity per word.
    """
    if size.words is None:
        per_unit = {"bits_per_character": nats / max(1, size.characters) / math.log(2)}
        units = {"characters": size.characters}
    else:
        per_unit = {"word_perplexity": safe_exp(nats / max(1, size.words))}  # per whitespace-separated word
        units = {"words": size.words}
    return {
        "loss": nats / max(1, tokens),
        "perplexity": safe_exp(nats / max(1, tokens)),  # comparable only under one tokenizer
        **per_unit,
        "bits_per_byte": nats / max(1, size.bytes) / math.log(2),  # per UTF-8 byte: comparable across tokenizers
        "tokens": tokens,
        **units,
        "bytes": size.bytes,
    }


def safe_exp(x: float) -> float:
    """Return exp(x), or infinity on overflow."""
    return math.exp(x) if x < 700 else math.inf
