"""Scores of texts of similar length: how quality falls as texts get longer (Q6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.data.text_size import TextSize
from heedful.evaluation.bleu_tokenizer import BleuTokenizer, make_bleu
from heedful.evaluation.wilson_interval import wilson_interval

Lengths = npt.NDArray[np.int64]
BUCKETS = 5
MIN_TEXTS = 10
"""Minimum number of texts in a bucket."""
SAMPLES = 1000
"""Samples of the bootstrap."""


def length_buckets(lengths: Lengths) -> list[Lengths]:
    """The indices of the texts in up to five groups of similar size, by length; texts of one length stay together."""
    count = max(1, min(BUCKETS, len(lengths) // MIN_TEXTS))
    limits = np.unique(np.quantile(lengths, np.linspace(0, 1, count + 1)[1:-1], method="higher"))
    groups = np.searchsorted(limits, lengths, side="left")
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def scores_by_length(lengths: Lengths, unit: str, score: Callable[[Lengths], dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of each group of texts of similar length, shortest first, by a function of the indices of a group."""
    return [
        {
            "unit": unit,
            "shortest": int(lengths[indices].min()),
            "longest": int(lengths[indices].max()),
            "texts": len(indices),
            **score(indices),
        }
        for indices in length_buckets(lengths)
    ]


def text_lengths(texts: Sequence[str]) -> tuple[Lengths, str]:
    """The lengths of texts in words, or in characters where words cannot be counted, and the unit."""
    if TextSize.measure(texts).words is None:
        return np.array([len(text) for text in texts]), "characters"
    return np.array([len(text.split()) for text in texts]), "words"


def translation_scores(
    outputs: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer
) -> Callable[[Lengths], dict[str, Any]]:
    """A function that scores some of the translations: BLEU, chrF and exact matches, with confidence intervals."""
    from sacrebleu.metrics.chrf import CHRF

    def score(indices: Lengths) -> dict[str, Any]:
        texts, expected = ([side[index] for index in indices] for side in (outputs, references))
        scores: dict[str, Any] = {}
        for name, metric in (("bleu", make_bleu(tokenizer.name)), ("chrf", CHRF())):
            result: Any = metric.corpus_score(texts, [expected], n_bootstrap=SAMPLES)
            low, high = (float(result._mean + sign * result._ci) for sign in (-1, 1))
            scores |= {name: float(result.score), f"{name}_low": low, f"{name}_high": high}
        exact = sum(a == b for a, b in zip(texts, expected, strict=True))
        return scores | wilson_interval("exact_match", exact, len(texts))

    return score


def accuracy_scores(correct: npt.NDArray[np.bool_]) -> Callable[[Lengths], dict[str, Any]]:
    """A function that scores some of the texts: the share of correct answers, with its interval."""
    return lambda indices: wilson_interval("accuracy", int(correct[indices].sum()), len(indices))
