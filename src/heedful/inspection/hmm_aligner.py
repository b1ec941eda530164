"""Which word became which: a statistical aligner that learns from the pairs themselves.

Whether a head of a translator aligns well can only be said if something else knows what belongs together. Here a
hidden Markov model walks over the words of one side while it writes the other (Vogel 1996). At first every step is as
likely as any other, which is IBM model 1 (Brown 1993); then it learns how far one steps. Both directions are trained
to agree (Liang 2006), and a link is what both believe. Nothing is random: the same pairs give the same links.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WordLinks = frozenset[tuple[int, int]]
"""Which words belong together: (source, target), counted from 0."""
Table = npt.NDArray[np.floating[Any]]
Numbers = npt.NDArray[np.integer[Any]]

FROM_NOTHING = 0.2
"""Share of words that come from no word of the other side (Och & Ney 2003)."""
FARTHEST = 10
"""Steps of so many words, and longer ones, are one kind of step."""
LEAST = 1e-7
"""No word is impossible."""
EDGES = re.compile(r"^\W+|\W+$")


def align_words(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]],
    *,
    symmetric: bool = True,
    iterations: int = 5,
    progress: Callable[[int], object] = lambda _: None,
) -> list[WordLinks]:
    """The links of every pair of texts, given in words: `rounds` of model 1, then as many with learnt steps.

    Directions that agree link words one to one, mostly. Where many come from one, as the digits of a date from a word,
    only the direction that writes them from it is asked: `agree=False`. `progress` is told of pairs, some each round.
    """
    corpus = AlignmentCorpus(pairs)
    there, back = HmmDirection(corpus.sources, corpus.targets), HmmDirection(corpus.targets, corpus.sources)
    asked = (there, back) if symmetric else (there,)
    for turn in range(2 * iterations):
        counts = np.bincount(corpus.kinds, posteriors(corpus, *asked), minlength=len(corpus.sources))
        for direction in asked:
            direction.update(counts, steps=turn >= iterations)
        progress(len(pairs) // (2 * iterations))
    return corpus.links(posteriors(corpus, *asked) > 0.5 ** len(asked), len(pairs))


def posteriors(corpus: AlignmentCorpus, there: HmmDirection, back: HmmDirection | None = None) -> Table:
    """For every cell of the corpus, how likely its two words belong together: P(there), or P(there) · P(back)."""
    likely = np.empty(len(corpus.kinds), np.float32)
    for block in corpus.blocks:
        kinds = corpus.kinds[block.cells].reshape(*block.target.shape, block.source.shape[1])
        one = there.forward_backward(kinds, block.target)
        if back is not None:
            one *= back.forward_backward(kinds.swapaxes(1, 2), block.source).swapaxes(1, 2)
        likely[block.cells] = one.ravel()
    return likely


@dataclass(frozen=True)
class PairBlock:
    """Pairs of like size side by side. Words are numbers, and 0 stands past the end of a text."""

    pairs: list[int]
    source: Numbers
    target: Numbers
    cells: slice
    """Where its cells (pairs × target × source) lie among those of the corpus."""


class AlignmentCorpus:
    """All pairs in blocks, and of which kind (this source word, that target word) each of their cells is."""

    def __init__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
        self.blocks = list(_blocks(*(_numbered([pair[side] for pair in pairs]) for side in (0, 1))))
        many = 1 + max((int(block.target.max()) for block in self.blocks), default=0)
        keys = [(block.source[:, None, :] * many + block.target[:, :, None]).ravel() for block in self.blocks]
        different, self.kinds = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_inverse=True)
        self.sources, self.targets = different // many, different % many

    def links(self, believed: npt.NDArray[np.bool_], pairs: int) -> list[WordLinks]:
        """The cells believed in, pair by pair."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for block in self.blocks:
            real = (block.target > 0)[:, :, None] & (block.source > 0)[:, None, :]
            for row, target, source in np.argwhere(real & believed[block.cells].reshape(real.shape)).tolist():
                found[block.pairs[row]].append((source, target))
        return [frozenset(found[pair]) for pair in range(pairs)]


class HmmDirection:
    """How the words of one side are written, given those of the other: what is learnt, and from what."""

    def __init__(self, given: Numbers, written: Numbers) -> None:
        self.given, self.written = given, written
        self.words = 1 + int(written.max(initial=0))
        self.step = np.ones(2 * FARTHEST + 1, np.float32)
        self._set(np.ones(len(given)), np.ones(self.words))

    def _set(self, table: Table, alone: Table) -> None:
        """P(written | given) for each kind of cell, and P(written | nothing). Past the end all is well, but from there
        nothing comes."""
        self.table, self.alone = table.astype(np.float32), alone.astype(np.float32)
        self.table[self.written == 0] = 1.0
        self.table[self.given == 0] = 0.0
        self.alone[0] = 1.0
        self.seen_alone, self.seen_steps = np.zeros(self.words), np.zeros(len(self.step))

    def update(self, counts: Table | Numbers, *, steps: bool) -> None:
        """Expected counts become probabilities: the M in EM."""
        counts = counts * (self.written > 0)
        of_given = np.bincount(self.given, counts)
        table = np.maximum(counts / np.maximum(of_given, LEAST)[self.given], LEAST)
        alone = np.maximum(self.seen_alone / max(self.seen_alone[1:].sum(), LEAST), LEAST)
        if steps:
            self.step = np.maximum(self.seen_steps / self.seen_steps.sum(), LEAST).astype(np.float32)
        self._set(table, alone)

    def forward_backward(self, kinds: Numbers, written: Numbers) -> Table:
        """P(this written word comes from that given one) over a block, by forward and backward passes: the E in EM.

        A word comes from the given word one steps to, or (a share of them) from nothing, and then one stays.
        """
        emit, alone = (1 - FROM_NOTHING) * self.table[kinds], FROM_NOTHING * self.alone[written][:, :, None]
        last, size = emit.shape[1] - 1, emit.shape[2]
        step, kind = self._steps(size)
        stand, found = np.empty_like(emit), np.empty_like(emit)  # where one stands, and what is written from there
        scale = np.empty_like(alone)
        for j in range(last + 1):
            before = step[:1] if j == 0 else stand[:, j - 1]
            found[:, j] = emit[:, j] * (step[:1] if j == 0 else before @ step[1:])
            stand[:, j] = found[:, j] + alone[:, j] * before
            scale[:, j] = stand[:, j].sum(-1, keepdims=True)
            stand[:, j] /= scale[:, j]
        found /= scale
        after, taken = np.ones_like(stand[:, 0]), np.zeros_like(step)
        for j in range(last, -1, -1):
            found[:, j] *= after
            onward = emit[:, j] * after / scale[:, j]
            real = onward * (written[:, j, None] > 0)
            if j == 0:
                taken[0] = real.sum(0)
            else:
                taken[1:] += stand[:, j - 1].T @ real
                after = onward @ step[1:].T + alone[:, j] * after / scale[:, j]
        self.seen_steps += np.bincount(kind.ravel(), (taken * step).ravel(), minlength=len(self.step))
        self.seen_alone += np.bincount(written.ravel(), (1 - found.sum(-1)).ravel(), minlength=self.words)
        return found

    def _steps(self, size: int) -> tuple[Table, Numbers]:
        """P(to the given word i | from the word before) as a table whose first row comes from before them all."""
        distance = np.arange(size) - np.arange(-1, size)[:, None]
        kind = np.clip(distance, -FARTHEST, FARTHEST) + FARTHEST
        likely = self.step[kind]
        return likely / likely.sum(1, keepdims=True), kind


def _numbered(texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Words as numbers from 1; case, and signs at a word's edges, tell no words apart."""
    numbers: dict[str, int] = {}
    plain = {word: EDGES.sub("", word.casefold()) or word for text in texts for word in text}
    return [[numbers.setdefault(plain[word], len(numbers) + 1) for word in text] for text in texts]


def _blocks(sources: list[list[int]], targets: list[list[int]]) -> Iterator[PairBlock]:
    """Pairs whose sides are as long; long sides are filled up by an eighth at most, to be fewer."""
    together: dict[tuple[int, int], list[int]] = defaultdict(list)
    for pair, (given, written) in enumerate(zip(sources, targets, strict=True)):
        if given and written:
            together[_filled(len(given)), _filled(len(written))].append(pair)
    start = 0
    for (wide, high), pairs in sorted(together.items()):
        source, target = np.zeros((len(pairs), wide), np.int64), np.zeros((len(pairs), high), np.int64)
        for row, pair in enumerate(pairs):
            source[row, : len(sources[pair])], target[row, : len(targets[pair])] = sources[pair], targets[pair]
        size = len(pairs) * wide * high
        yield PairBlock(pairs, source, target, slice(start, start + size))
        start += size


def _filled(length: int) -> int:
    step = max(1, length // 8)
    return -(-length // step) * step
