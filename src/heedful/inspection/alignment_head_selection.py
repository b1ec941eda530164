"""Select the cross-attention head that aligns best, by comparing every head with reference links (A9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from heedful.data.unicode_scripts import SCRIPTS, UNSPACED_SCRIPTS, scripts_of
from heedful.inspection.attention_alignment import (
    Alignment,
    Row,
    TranslationModel,
    Weights,
    WordPairs,
    cross_attention_weights,
    linked_sources,
    word_weights,
)
from heedful.inspection.hmm_aligner import WordLinks
from heedful.text.word_tokens import TokenizedWords, Unit

ROWS: tuple[Row, Row] = ("output", "input")
Counts = npt.NDArray[np.int64]


def select_head(
    model: TranslationModel,
    pairs: WordPairs,
    links: Sequence[WordLinks],
    *,
    units: tuple[Unit, Unit],
    aligner: str,
    progress: Callable[[int], object] = lambda _: None,
) -> Alignment:
    """Select the head with the lowest error on half of the pairs; its reported error is on the other half."""
    selection, held_out = alignment_error_rates(model, pairs, links, progress=progress)
    best = min(selection, key=selection.__getitem__)
    single = [error for head, error in held_out.items() if head.head is not None and head.row == best.row]
    return best.with_changes(
        units=units,
        error_rate=held_out[best],
        mean_error_rate=float(np.mean(single)),
        worst_error_rate=max(single),
        pairs=len(pairs) // 2,
        aligner=aligner,
    )


def alignment_error_rates(
    model: TranslationModel,
    pairs: WordPairs,
    links: Sequence[WordLinks],
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[dict[Alignment, float], dict[Alignment, float]]:
    """Compute each head's alignment error rate, 1 − 2 |A ∩ S| / (|A| + |S|), on both halves        Och & Ney 2003

    A: links of the head, S: reference links. The mean over the heads of a layer is also a candidate.
    """
    candidates: list[Alignment] = []
    counts: list[list[Counts]] = [[], []]
    half = np.random.default_rng(0).permutation(len(pairs)) % 2  # random: neighboring pairs may be similar
    for index, tables in cross_attention_weights(model, pairs):
        weights = np.concatenate([np.concatenate([heads, heads.mean(0, keepdims=True)]) for heads in tables.values()])
        reference = _link_table(links[index], *pairs[index])
        counts[half[index]].append(
            np.concatenate([_link_counts(word_weights(weights, *pairs[index], row), reference) for row in ROWS])
        )
        names = [(tap, head) for tap, heads in tables.items() for head in (*range(len(heads)), None)]
        candidates = candidates or [Alignment(tap=tap, head=head, row=row) for row in ROWS for tap, head in names]
        progress(1)
    first, second = counts
    return _error_rates(candidates, first), _error_rates(candidates, second or first)


def _link_table(links: WordLinks, source: TokenizedWords, target: TokenizedWords) -> npt.NDArray[np.bool_]:
    table = np.zeros((len(target.words), len(source.words) + 1), np.bool_)
    for source_word, target_word in links:
        table[target_word, source_word] = True
    return table


def _link_counts(weights: Weights, reference: npt.NDArray[np.bool_]) -> Counts:
    """Return for each head: correct links, predicted links, reference links."""
    sources = linked_sources(weights)
    correct = reference[np.arange(len(reference)), sources].sum(-1)
    predicted = (sources != reference.shape[1] - 1).sum(-1)
    return np.stack([correct, predicted, np.full_like(correct, reference.sum())], axis=-1)


def _error_rates(candidates: Sequence[Alignment], counts: Sequence[Counts]) -> dict[Alignment, float]:
    correct, predicted, reference = np.sum(counts, axis=0).T
    rates = 1 - 2 * correct / np.maximum(1, predicted + reference)
    return dict(zip(candidates, rates.tolist(), strict=True))


def choose_unit(texts: Sequence[str]) -> Unit:
    """Return "characters" for scripts without spaces and for texts of about one word, else "words"."""
    script = scripts_of(list(texts), np.array([len(text) for text in texts]))
    unspaced = np.isin(script, [SCRIPTS.index(name) for name in UNSPACED_SCRIPTS]).mean() > 0.5
    words = np.mean([len(text.split()) for text in texts])
    return "characters" if unspaced or words < 1.5 else "words"
