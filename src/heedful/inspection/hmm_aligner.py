"""Statistical word aligner: a hidden Markov model trained on the pairs themselves.

Its links are the reference for measuring how well a head aligns. The words of one side are hidden states that emit the
words of the other (Vogel 1996). It starts with uniform jumps, which is IBM model 1 (Brown 1993), then learns the jump
distribution. Both directions are trained to agree (Liang 2006), and a link needs both. Deterministic. Hand-written
because existing aligners (fast_align, eflomal) are C++ programs that users would have to compile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.text.word_tokens import Unit

WordLinks = frozenset[tuple[int, int]]
"""Linked words as (source index, target index)."""
Table = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.integer[Any]]

NULL_PROBABILITY = 0.2
"""Share of words aligned to no word of the other side (Och & Ney 2003)."""
MAX_JUMP = 10
"""Longest jump with a probability of its own; longer jumps share it."""
MIN_PROBABILITY = 1e-7
EDGE_PUNCTUATION = re.compile(r"^\W+|\W+$")


def align_words(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]],
    *,
    symmetric: bool = True,
    iterations: int = 5,
    progress: Callable[[int], object] = lambda _: None,
) -> list[WordLinks]:
    """Align pairs of word lists: `iterations` of EM with model 1, then as many with learned jumps.

    Symmetric links are mostly one to one. Where many words come from one, as the digits of a date from a word, use
    `symmetric=False`: only the direction that emits them from it. `progress` counts pairs.
    """
    corpus = AlignmentCorpus(pairs)
    forward = HmmDirection(corpus.sources, corpus.targets)
    backward = HmmDirection(corpus.targets, corpus.sources)
    directions = (forward, backward) if symmetric else (forward,)
    for iteration in range(2 * iterations):
        counts = np.bincount(corpus.cell_types, posteriors(corpus, *directions), minlength=len(corpus.sources))
        for direction in directions:
            direction.update(counts, learn_jumps=iteration >= iterations)
        progress(len(pairs) // (2 * iterations))
    return corpus.links(posteriors(corpus, *directions) > 0.5 ** len(directions), len(pairs))


def statistical_alignments(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]], units: tuple[Unit, Unit], **options: Any
) -> list[WordLinks]:
    """Word links by the HMM aligner; between characters and words, only the many-to-one direction is fitted."""
    if units == ("characters", "words"):
        reversed_links = align_words([(target, source) for source, target in pairs], symmetric=False, **options)
        return [frozenset((source, target) for target, source in links) for links in reversed_links]
    return align_words(pairs, symmetric=units[0] == units[1], **options)


def posteriors(corpus: AlignmentCorpus, forward: HmmDirection, backward: HmmDirection | None = None) -> Table:
    """Return for every cell of the corpus the posterior of its link: P(forward), or P(forward) · P(backward)."""
    result = np.empty(len(corpus.cell_types), np.float32)
    for block in corpus.blocks:
        types = corpus.cell_types[block.cells].reshape(*block.target.shape, block.source.shape[1])
        posterior = forward.forward_backward(types, block.target)
        if backward is not None:
            posterior *= backward.forward_backward(types.swapaxes(1, 2), block.source).swapaxes(1, 2)
        result[block.cells] = posterior.ravel()
    return result


@dataclass(frozen=True)
class PairBlock:
    """Pairs of similar length, padded to one shape; words are ids from 1, 0 is padding."""

    pairs: list[int]
    source: Integers
    target: Integers
    cells: slice
    """Range of its cells (pairs × target × source) among those of the corpus."""


class AlignmentCorpus:
    """All pairs in blocks, and the type (source word, target word) of each of their cells."""

    def __init__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
        self.blocks = list(_blocks(*(_word_ids([pair[side] for pair in pairs]) for side in (0, 1))))
        target_words = 1 + max((int(block.target.max()) for block in self.blocks), default=0)
        keys = [(block.source[:, None, :] * target_words + block.target[:, :, None]).ravel() for block in self.blocks]
        types, self.cell_types = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
        self.sources, self.targets = types // target_words, types % target_words

    def links(self, linked: npt.NDArray[np.bool_], pairs: int) -> list[WordLinks]:
        """Collect the linked cells by pair."""
        links: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for block in self.blocks:
            real = (block.target > 0)[:, :, None] & (block.source > 0)[:, None, :]
            for row, target, source in np.argwhere(real & linked[block.cells].reshape(real.shape)).tolist():
                links[block.pairs[row]].append((source, target))
        return [frozenset(links[pair]) for pair in range(pairs)]


class HmmDirection:
    """One direction of the HMM: the words of one side are hidden states, those of the other are emitted."""

    def __init__(self, states: Integers, emitted: Integers) -> None:
        self.states, self.emitted = states, emitted
        self.vocabulary = 1 + int(emitted.max(initial=0))
        self.jump = np.ones(2 * MAX_JUMP + 1, np.float32)
        self._set(np.ones(len(states)), np.ones(self.vocabulary))

    def _set(self, emission: Table, null_emission: Table) -> None:
        """Set P(emitted | state) per cell type and P(emitted | null), and reset the expected counts.

        Padding is emitted with probability 1, and emits nothing.
        """
        self.emission, self.null_emission = emission.astype(np.float32), null_emission.astype(np.float32)
        self.emission[self.emitted == 0] = 1.0
        self.emission[self.states == 0] = 0.0
        self.null_emission[0] = 1.0
        self.null_counts, self.jump_counts = np.zeros(self.vocabulary), np.zeros(len(self.jump))

    def update(self, counts: Table | Integers, *, learn_jumps: bool) -> None:
        """M step: turn expected counts into probabilities."""
        counts = counts * (self.emitted > 0)
        state_counts = np.bincount(self.states, counts)
        emission = np.maximum(counts / np.maximum(state_counts, MIN_PROBABILITY)[self.states], MIN_PROBABILITY)
        null_total = max(self.null_counts[1:].sum(), MIN_PROBABILITY)
        null_emission = np.maximum(self.null_counts / null_total, MIN_PROBABILITY)
        if learn_jumps:
            self.jump = np.maximum(self.jump_counts / self.jump_counts.sum(), MIN_PROBABILITY).astype(np.float32)
        self._set(emission, null_emission)

    def forward_backward(self, types: Integers, emitted: Integers) -> Table:
        """E step: P(this word is emitted by that state) over a block, by the forward-backward algorithm.

        Each word is emitted by the state jumped to, or (with the null probability) by none, and the state stays.
        """
        emission = (1 - NULL_PROBABILITY) * self.emission[types]
        null = NULL_PROBABILITY * self.null_emission[emitted][:, :, None]
        last, size = emission.shape[1] - 1, emission.shape[2]
        transition, jump_index = self._transitions(size)
        state, posterior = np.empty_like(emission), np.empty_like(emission)
        scale = np.empty_like(null)
        for j in range(last + 1):
            before = transition[:1] if j == 0 else state[:, j - 1]
            posterior[:, j] = emission[:, j] * (transition[:1] if j == 0 else before @ transition[1:])
            state[:, j] = posterior[:, j] + null[:, j] * before
            scale[:, j] = state[:, j].sum(-1, keepdims=True)
            state[:, j] /= scale[:, j]
        posterior /= scale
        after, jumps = np.ones_like(state[:, 0]), np.zeros_like(transition)
        for j in range(last, -1, -1):
            posterior[:, j] *= after
            onward = emission[:, j] * after / scale[:, j]
            real = onward * (emitted[:, j, None] > 0)
            if j == 0:
                jumps[0] = real.sum(0)
            else:
                jumps[1:] += state[:, j - 1].T @ real
                after = onward @ transition[1:].T + null[:, j] * after / scale[:, j]
        self.jump_counts += np.bincount(jump_index.ravel(), (jumps * transition).ravel(), minlength=len(self.jump))
        self.null_counts += np.bincount(emitted.ravel(), (1 - posterior.sum(-1)).ravel(), minlength=self.vocabulary)
        return posterior

    def _transitions(self, size: int) -> tuple[Table, Integers]:
        """Return P(state i | previous state), the first row from before all states, and the jump index of each cell."""
        distance = np.arange(size) - np.arange(-1, size)[:, None]
        jump_index = np.clip(distance, -MAX_JUMP, MAX_JUMP) + MAX_JUMP
        probability = self.jump[jump_index]
        return probability / probability.sum(1, keepdims=True), jump_index


def _word_ids(texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Number words from 1, ignoring case and punctuation at their edges."""
    ids: dict[str, int] = {}
    normalized = {word: EDGE_PUNCTUATION.sub("", word.casefold()) or word for text in texts for word in text}
    return [[ids.setdefault(normalized[word], len(ids) + 1) for word in text] for text in texts]


def _blocks(sources: list[list[int]], targets: list[list[int]]) -> Iterator[PairBlock]:
    """Group pairs by padded length."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for pair, (source_ids, target_ids) in enumerate(zip(sources, targets, strict=True)):
        if source_ids and target_ids:
            groups[_padded(len(source_ids)), _padded(len(target_ids))].append(pair)
    start = 0
    for (width, height), pairs in sorted(groups.items()):
        source, target = np.zeros((len(pairs), width), np.int64), np.zeros((len(pairs), height), np.int64)
        for row, pair in enumerate(pairs):
            source[row, : len(sources[pair])], target[row, : len(targets[pair])] = sources[pair], targets[pair]
        size = len(pairs) * width * height
        yield PairBlock(pairs, source, target, slice(start, start + size))
        start += size


def _padded(length: int) -> int:
    """Round a length up by at most an eighth, so that there are fewer groups."""
    step = max(1, length // 8)
    return -(-length // step) * step
