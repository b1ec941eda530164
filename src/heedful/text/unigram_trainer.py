"""The unigram model's vocabulary, by expectation–maximisation (Kudo 2018, section 3.2).

The `tokenizers` library encodes with the model, but does not learn it here: its trainer looks for pieces in the list
of distinct words, so a word that is part of no other ("that", "while") never becomes a piece however frequent it is,
and its results hang on the order of a hash table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

LONGEST = 16  # characters in a piece, as in SentencePiece
SHRINK = 0.75  # how much of the vocabulary a round of pruning leaves
SEEDS = 8  # pieces at the start for each one wished for; more take longer and find little better

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def learn_pieces(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces with their log probabilities, likeliest first; every character is one of them.

        P(word) = Σ over all ways to cut it Π p(piece)

    Start with far too many pieces; in turn fit p (EM) and drop those that the likelihood would miss least.
    """
    texts = sorted(words)
    counts = np.array([words[text] for text in texts], dtype=np.float64)
    pieces, weights = _seeds(words, SEEDS * size)
    single = np.array([len(piece) == 1 for piece in pieces])
    index = {piece: place for place, piece in enumerate(pieces)}
    ways, other_ways = Lattice(texts, index), Lattice(pieces, index, whole=False)
    scores = np.log(weights / weights.sum())
    while True:
        for _ in range(2):
            expected = ways.expected_uses(scores, counts)
            alive = single | (expected >= 0.5)
            scores = _log_probabilities(np.where(alive, np.maximum(expected, 0.5), 0.0))
        if alive.sum() <= size:
            break
        loss = np.where(single, np.inf, -np.inf)
        several = alive & ~single
        loss[several] = expected[several] * (scores - other_ways.best(scores))[several]
        least = np.argsort(-loss, kind="stable")[max(size, int(SHRINK * alive.sum())) :]
        scores[least] = -np.inf
        ways.drop(np.isneginf(scores))
        other_ways.drop(np.isneginf(scores))
    learnt = [(piece, round(float(score), 6)) for piece, score in zip(pieces, scores, strict=True) if score > -np.inf]
    return sorted(learnt, key=lambda entry: (-entry[1], entry[0]))


class Lattice:
    """Every way to cut texts into pieces: a node before and after each character, an edge for each piece."""

    def __init__(self, texts: Sequence[str], index: Mapping[str, int], *, whole: bool = True) -> None:
        """`whole`: whether a text may be one piece."""
        self.sizes = np.array([len(text) + 1 for text in texts], dtype=np.int32)
        self.last: Ints = np.cumsum(self.sizes, dtype=np.int32) - 1
        self.first: Ints = self.last - self.sizes + 1
        edges = (
            (start, end, text, found)
            for text, string in enumerate(texts)
            for start in range(len(string))
            for end in range(start + 1, min(start + LONGEST, len(string)) + 1)
            if (found := index.get(string[start:end])) is not None and (whole or end - start < len(string))
        )
        start, end, text, piece = np.fromiter(edges, dtype=np.dtype((np.int32, 4))).T
        start, end = self.first[text] + start, self.first[text] + end
        self.forward = Sweep(start, end, piece, depth=end - self.first[text])
        self.backward = Sweep(end, start, piece, depth=self.last[text] - start)

    def expected_uses(self, scores: Floats, counts: Floats) -> Floats:
        """The E step: how often each piece is used, on average over all ways to cut each text, in all its `counts`."""
        before = self.forward.run(self._at(self.first), scores, np.logaddexp)
        after = self.backward.run(self._at(self.last), scores, np.logaddexp)
        total, times = np.repeat(after[self.first], self.sizes), np.repeat(counts, self.sizes)
        start, end, piece = self.forward.source, self.forward.target, self.forward.piece
        chance = np.exp(before[start] + scores[piece] + after[end] - total[start])
        return np.bincount(piece, weights=chance * times[start], minlength=len(scores)).astype(np.float64)

    def best(self, scores: Floats) -> Floats:
        """The score of the best way to cut each text."""
        return self.forward.run(self._at(self.first), scores, np.maximum)[self.last]

    def drop(self, gone: NDArray[np.bool_]) -> None:
        self.forward.drop(gone)
        self.backward.drop(gone)

    def _at(self, nodes: Ints) -> Floats:
        values = np.full(self.sizes.sum(), -np.inf)
        values[nodes] = 0.0
        return values


class Sweep:
    """The edges in the order in which a sum or maximum over paths meets them: all texts at once, node by node."""

    def __init__(self, source: Ints, target: Ints, piece: Ints, depth: Ints) -> None:
        order = np.lexsort((target, depth))
        self.source, self.target, self.piece, self.depth = source[order], target[order], piece[order], depth[order]

    def drop(self, gone: NDArray[np.bool_]) -> None:
        keep = ~gone[self.piece]
        self.source, self.target, self.piece, self.depth = (
            edges[keep] for edges in (self.source, self.target, self.piece, self.depth)
        )

    def run(self, values: Floats, scores: Floats, combine: np.ufunc) -> Floats:
        """value(node) = combine over its edges of value(source) + score(piece)."""
        groups = np.flatnonzero(np.diff(self.target, prepend=-1))
        levels = np.flatnonzero(np.diff(self.depth[groups], prepend=0, append=-1))
        bounds = np.append(groups, len(self.target))
        for level, following in pairwise(levels):
            inside = slice(bounds[level], bounds[following])
            nodes = groups[level:following]
            paths = values[self.source[inside]] + scores[self.piece[inside]]
            values[self.target[nodes]] = combine.reduceat(paths, nodes - bounds[level])
        return values


def _seeds(words: Mapping[str, int], size: int) -> tuple[list[str], Floats]:
    """Every character, then the strings that cover most text, `size` in all where there are as many."""
    characters, longer = Counter[str](), Counter[str]()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    shorter, growing = dict(characters), list(words)
    for length in range(2, LONGEST + 1):
        found, still = Counter[str](), []
        for word in growing:
            starts = [start for start in range(len(word) - length + 1) if word[start : start + length - 1] in shorter]
            for start in starts:
                found[word[start : start + length]] += words[word]
            if starts:
                still.append(word)
        shorter, growing = {string: count for string, count in found.items() if count > 1}, still
        longer.update({string: count * length for string, count in shorter.items()})
    chosen = sorted(characters.items()) + sorted(longer.items(), key=lambda entry: (-entry[1], entry[0]))
    chosen = chosen[: max(size, len(characters))]
    return [piece for piece, _ in chosen], np.array([weight for _, weight in chosen], dtype=np.float64)


def _log_probabilities(uses: Floats) -> Floats:
    """The M step: ψ(uses) − ψ(all uses), where a plain log would be the likeliest; ψ takes more from rare pieces, as if
    half a use were missing from each (Liang & Klein 2007, as in SentencePiece). Unused pieces get −∞."""
    scores = np.full(len(uses), -np.inf)
    scores[uses > 0] = _digamma(uses[uses > 0]) - _digamma(uses.sum(keepdims=True))
    return scores


def _digamma(x: Floats) -> Floats:
    far = x + 6
    near = sum(1 / (x + step) for step in range(6))
    return np.asarray(np.log(far) - 1 / (2 * far) - 1 / (12 * far**2) + 1 / (120 * far**4) - near)
