"""Occlusion: align target words with source words by removing a source word and scoring the target again.

    score_ij = max(0, log p(y_j | y_<j, x) − log p(y_j | y_<j, x without x_i))        Li 2019

It needs no attention, so it works for every family of models and for any target text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from heedful.data.batching import map_length_buckets
from heedful.data.collate import pad_sequences
from heedful.generation.input_splitting import max_input_tokens
from heedful.models.protocols import DecoderModel
from heedful.text.special_tokens import END, START
from heedful.text.tokenizer import Tokenizer, TokenSpan

OcclusionScores = NDArray[np.float64]
"""Source words × target words, in nats."""
AlignmentShares = NDArray[np.float64]
"""Source words × target words: the share of a target word that is due to each source word; columns sum to at most 1."""
NOISE = 0.2
"""Noise level of a score, in nats."""
MAX_OCCLUSIONS = 64
"""Maximum number of occluded copies of a source; in longer sources, neighboring words are removed together."""


class TextWords(NamedTuple):
    """A text and the character spans of its words."""

    text: str
    spans: Sequence[tuple[int, int]]


def occlusion_scores(
    model: DecoderModel,
    tokenizers: tuple[Tokenizer, ...],
    pairs: Sequence[tuple[TextWords, TextWords]],
    *,
    batch_tokens: int = 1024,
) -> list[OcclusionScores]:
    """For each pair of source and target, the effect of every source word on every target word."""
    max_tokens = max_input_tokens(model.config)  # target words beyond it score 0
    rows: list[tuple[list[int], list[int]]] = []
    for source, target in pairs:
        source_tokens = tokenizers[0].spans(source.text)
        target_ids = [span.token for span in tokenizers[-1].spans(target.text)][:max_tokens]
        rows.append(([span.token for span in source_tokens], target_ids))
        for group in _occluded_groups(source):
            removed = source.spans[group[0]][0], source.spans[group[-1]][1]
            rows.append(([span.token for span in source_tokens if not _overlap(span, removed)], target_ids))
    log_probabilities = iter(score_targets(model, rows, batch_tokens=batch_tokens))
    return [_word_scores(log_probabilities, tokenizers[-1], source, target) for source, target in pairs]


def _word_scores(
    log_probabilities: Iterator[NDArray[np.float64]], tokenizer: Tokenizer, source: TextWords, target: TextWords
) -> OcclusionScores:
    """Sum the drop of each target token's log-probability by words; consumes the rows of one pair."""
    full = next(log_probabilities)
    tokens = tokenizer.spans(target.text)[: len(full)]
    token_in_word = np.array([[_overlap(token, word) for word in target.spans] for token in tokens], np.float64)
    token_in_word = token_in_word.reshape(len(tokens), len(target.spans))
    sizes = [len(group) for group in _occluded_groups(source)]
    drops = [(full - next(log_probabilities)) / size for size in sizes]
    rows = np.repeat(np.array(drops).reshape(len(sizes), len(tokens)), sizes, axis=0)
    return np.maximum(rows @ token_in_word, 0.0)


def _occluded_groups(source: TextWords) -> list[range]:
    """Indices of words that are removed together: single words, except in very long sources."""
    words = len(source.spans)
    size = max(1, -(-words // MAX_OCCLUSIONS))
    return [range(start, min(start + size, words)) for start in range(0, words, size)]


def normalize_scores(scores: OcclusionScores) -> AlignmentShares:
    """Shares from scores: each source word explains few target words, each target word comes from few source words.

    Removing "man" makes both words of "ein Mann" less likely; but "ein" also depends a little on "a", on which nothing
    else does. Rows and columns are scaled in turn to sum to (almost) 1        Sinkhorn & Knopp 1967, with a remainder
    """
    shares = scores
    for _ in range(10):
        shares = shares / (shares.sum(1, keepdims=True) + NOISE)
        shares = shares / (shares.sum(0, keepdims=True) + NOISE / 10)
    return shares


@torch.inference_mode()
def score_targets(
    model: DecoderModel, pairs: Sequence[tuple[list[int], list[int]]], *, batch_tokens: int = 1024
) -> list[NDArray[np.float64]]:
    """Teacher forcing: log p of each target token, given the source and the target tokens before it."""
    device = model.device

    def score(rows: list[int]) -> list[NDArray[np.float64]]:
        source, lengths = pad_sequences([pairs[i][0] for i in rows], end=END, device=device)
        target, _ = pad_sequences([pairs[i][1] for i in rows], start=START, device=device)
        logits = model.extend(target, model.start(source, lengths))[:, :-1].float()
        losses = cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), reduction="none")
        scores = -losses.view(len(rows), -1).double().cpu().numpy()
        return [row[: len(pairs[i][1])] for i, row in zip(rows, scores, strict=True)]

    lengths_of_sides = [[len(target) + 1 for _, target in pairs], [len(source) + 1 for source, _ in pairs]]
    return map_length_buckets(score, lengths_of_sides, 2 * batch_tokens, longest_first=True)


def _overlap(token: TokenSpan, span: tuple[int, int]) -> bool:
    return token.start < span[1] and token.end > span[0]
