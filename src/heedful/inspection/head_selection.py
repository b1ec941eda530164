"""Of all layers and heads, which one aligns? Measured, not guessed: every one is held against known links (A9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.data.unicode_scripts import SCRIPTS, scripts_of
from heedful.inspection.attention_alignment import Alignment, AttentionHead, Row, Weights, cross_attention_weights, linked_sources, word_weights
from heedful.inspection.hmm_aligner import WordLinks
from heedful.text.word_tokens import TokenizedWords, Unit

ROWS: tuple[Row, Row] = ("writes", "reads")
Counts = npt.NDArray[np.int64]


def select_head(
    model: Any,
    pairs: Sequence[tuple[TokenizedWords, TokenizedWords]],
    links: Sequence[WordLinks],
    *,
    units: tuple[Unit, Unit],
    aligner: str,
    progress: Callable[[int], object] = lambda _: None,
) -> Alignment:
    """The head that errs least on half of the pairs, with its error on the rest, which had no say in the choice."""
    choosing, judging = alignment_error_rates(model, pairs, links, progress=progress)
    best = min(choosing, key=lambda head: choosing[head])
    single = [error for head, error in judging.items() if head.head is not None and head.row == best.row]
    return Alignment(
        tap=best.tap,
        head=best.head,
        row=best.row,
        units=units,
        error_rate=judging[best],
        mean_error_rate=float(np.mean(single)),
        worst_error_rate=max(single),
        pairs=len(pairs) // 2,
        aligner=aligner,
    )


def alignment_error_rates(
    model: Any,
    pairs: Sequence[tuple[TokenizedWords, TokenizedWords]],
    links: Sequence[WordLinks],
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[dict[AttentionHead, float], dict[AttentionHead, float]]:
    """Each head's alignment error rate, 1 − 2 |A ∩ S| / (|A| + |S|), on either half of the pairs        Och & Ney 2003

    A: the links the head gives, S: those held to be true. A layer's mean over its heads stands as a candidate, too.
    """
    places: list[AttentionHead] = []
    counts: list[list[Counts]] = [[], []]
    half = np.random.default_rng(0).permutation(len(pairs)) % 2  # neighbours may be alike, and every other one, too
    for index, seen in cross_attention_weights(model, pairs):
        every = np.concatenate([np.concatenate([heads, heads.mean(0, keepdims=True)]) for heads in seen.values()])
        true = _table(links[index], *pairs[index])
        counts[half[index]].append(
            np.concatenate([_counts(word_weights(every, *pairs[index], row), true) for row in ROWS])
        )
        places = places or [
            AttentionHead(tap, head, row) for row in ROWS for tap, heads in seen.items() for head in (*range(len(heads)), None)
        ]
        progress(1)
    one, other = counts
    return _rates(places, one), _rates(places, other or one)


def _table(links: WordLinks, source: TokenizedWords, target: TokenizedWords) -> npt.NDArray[np.bool_]:
    table = np.zeros((len(target.words), len(source.words) + 1), np.bool_)
    for source_word, target_word in links:
        table[target_word, source_word] = True
    return table


def _counts(weights: Weights, true: npt.NDArray[np.bool_]) -> Counts:
    """For each head: links that are right, links given, links there are."""
    chosen = linked_sources(weights)
    right = true[np.arange(len(true)), chosen].sum(-1)
    given = (chosen != true.shape[1] - 1).sum(-1)
    return np.stack([right, given, np.full_like(right, true.sum())], axis=-1)


def _rates(places: Sequence[AttentionHead], counts: Sequence[Counts]) -> dict[AttentionHead, float]:
    right, given, there = np.sum(counts, axis=0).T
    rates = 1 - 2 * right / np.maximum(1, given + there)
    return dict(zip(places, rates.tolist(), strict=True))


def choose_unit(texts: Sequence[str]) -> Unit:
    """Words, where blanks part them: not in scripts that go without, nor where a text is but one word."""
    script = scripts_of(list(texts), np.array([len(text) for text in texts]))
    runs_on = np.isin(script, [SCRIPTS.index(name) for name in WITHOUT_BLANKS]).mean() > 0.5
    words = np.mean([len(text.split()) for text in texts])
    return "characters" if runs_on or words < 1.5 else "words"


WITHOUT_BLANKS = ("Han or kana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
