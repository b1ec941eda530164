"""Which source words a target word came from, asked of any model that translates: leave a word out and see which
target words the model then believes in less.

    debt_ij = log p(y_j | y_<j, x) − log p(y_j | y_<j, x without x_i), where that is positive        Li 2019

It needs no attention, so it works for every family, and for any target text, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from heedful.data.batching import length_buckets
from heedful.data.collate import pad_sequences
from heedful.generation.input_splitting import max_input_tokens
from heedful.text.special_tokens import END, START
from heedful.text.tokenizer import Tokenizer, TokenSpan

OcclusionScores = NDArray[np.float64]
"""Source words × target words, in nats."""
AlignmentShares = NDArray[np.float64]
"""Source words × target words: how much of a target word came from each source word, at most 1 together."""
NOISE = 0.2
"""Nats that a word owes or is owed by chance."""
MAX_OCCLUSIONS = 64
"""Times that a source is read again; in one with more words, neighbours are left out together."""


class TextWords(NamedTuple):
    """A text and its words, from character to character."""

    text: str
    words: Sequence[tuple[int, int]]


def occlusion_scores(
    model: Any, tokenizers: tuple[Tokenizer, ...], pairs: Sequence[tuple[TextWords, TextWords]], *, tokens: int = 1024
) -> list[OcclusionScores]:
    """For each source and target what every target word owes to every source word."""
    room = max_input_tokens(model.config)  # words further on owe nothing
    rows: list[tuple[list[int], list[int]]] = []
    for source, target in pairs:
        read = tokenizers[0].spans(source.text)
        written = [span.token for span in tokenizers[-1].spans(target.text)][:room]
        rows.append(([span.token for span in read], written))
        for group in _groups(source):
            gone = source.words[group[0]][0], source.words[group[-1]][1]
            rows.append(([span.token for span in read if not _overlap(span, gone)], written))
    scored = iter(score_targets(model, rows, tokens=tokens))
    return [_debts(scored, tokenizers[-1], source, target) for source, target in pairs]


def _debts(
    scored: Iterator[NDArray[np.float64]], tokenizer: Tokenizer, source: TextWords, target: TextWords
) -> OcclusionScores:
    full = next(scored)
    spans = tokenizer.spans(target.text)[: len(full)]
    belongs = np.array([[_overlap(span, word) for word in target.words] for span in spans], np.float64)
    belongs = belongs.reshape(len(spans), len(target.words))
    sizes = [len(group) for group in _groups(source)]
    lost = [(full - next(scored)) / size for size in sizes]
    rows = np.repeat(np.array(lost).reshape(len(sizes), len(spans)), sizes, axis=0)
    return np.maximum(rows @ belongs, 0.0)


def _groups(source: TextWords) -> list[range]:
    """Words left out together: each by itself, unless there are very many."""
    size = max(1, -(-len(source.words) // MAX_OCCLUSIONS))
    return [range(start, min(start + size, len(source.words))) for start in range(0, len(source.words), size)]


def normalise_scores(owed: OcclusionScores) -> AlignmentShares:
    """Debts settled between rivals: a source word pays for few target words, and a target word for few source words.

    Leaving out "man" makes "ein Mann" less likely, both words; but "ein" also owes a little to "a", which nobody else
    does. Rows and columns are made to sum to (almost) 1 in turn        Sinkhorn & Knopp 1967, with a remainder
    """
    found = owed
    for _ in range(10):
        found = found / (found.sum(1, keepdims=True) + NOISE)
        found = found / (found.sum(0, keepdims=True) + NOISE / 10)
    return found


@torch.inference_mode()
def score_targets(
    model: Any, pairs: Sequence[tuple[list[int], list[int]]], *, tokens: int = 1024
) -> list[NDArray[np.float64]]:
    """log p of each target token, given the source and the target tokens before it; like lengths share a batch."""
    device = model.table.weight.device
    results: dict[int, NDArray[np.float64]] = {}
    lengths_of_sides = [[len(target) + 1 for _, target in pairs], [len(source) + 1 for source, _ in pairs]]
    for bucket in length_buckets(lengths_of_sides, 2 * tokens, longest_first=True):
        rows = bucket.tolist()
        source, lengths = pad_sequences([pairs[i][0] for i in rows], end=END, device=device)
        target, _ = pad_sequences([pairs[i][1] for i in rows], start=START, device=device)
        logits = model.extend(target, model.start(source, lengths))[:, :-1].float()
        surprise = cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), reduction="none")
        found = -surprise.view(len(rows), -1).double().cpu().numpy()
        results |= {i: found[row, : len(pairs[i][1])] for row, i in enumerate(rows)}
    return [results[i] for i in range(len(pairs))]


def _overlap(span: TokenSpan, stretch: tuple[int, int]) -> bool:
    return span.start < stretch[1] and span.end > stretch[0]
