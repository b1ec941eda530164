"""Nearest neighbors and analogies among word vectors, by cosine (E2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heedful.errors import DataError, UsageError, require_positive

Vector = npt.NDArray[np.float32]
Table = npt.NDArray[np.float32]
SUGGESTION_WORDS = 100_000
"""Words searched for the nearest spelling of an unknown word."""


class Neighbor(NamedTuple):
    """A word and its cosine to the query."""

    word: str
    cosine: float


class WordTable:
    """Words and their vectors, one row per word."""

    def __init__(self, words: Sequence[str], table: Table, name: str = "this table") -> None:
        if not len(words):
            raise DataError(f"{name} holds no words")
        self.words, self.table, self.name = list(words), table, name
        self._indices = {word: index for index, word in reversed(list(enumerate(self.words)))}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find_index(word) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def find_index(self, word: str) -> int | None:
        """Return the row of a word, else of its lower-case form, else None."""
        if not isinstance(word, str):
            raise UsageError(f"a word must be a string, got {word!r:.60}")
        return self._indices.get(word, self._indices.get(word.lower()))

    def index(self, word: str) -> int:
        """Return the row of a word; raise for an unknown word with the nearest spelling."""
        index = self.find_index(word)
        if index is None:
            raise UsageError(self.problem(word))
        return index

    def problem(self, word: str) -> str:
        """The message that a word is unknown, with the nearest spelling; empty if it is known."""
        if word in self:
            return ""
        close = get_close_matches(word.lower(), self.words[:SUGGESTION_WORDS], n=1, cutoff=0.7)
        hint = f"did you mean '{close[0]}'?" if close else "try another word"
        return f"{self.name} does not know '{word}'; {hint}"

    @cached_property
    def unit_vectors(self) -> Table:
        """The vectors scaled to length 1, so that a dot product is a cosine; zero vectors stay zero."""
        return _normalize(self.table)

    def cosine(self, one: str, other: str) -> float:
        """u·v / (|u||v|) ∈ [−1, 1]        E2"""
        return float(np.clip(self.unit_vectors[self.index(one)] @ self.unit_vectors[self.index(other)], -1.0, 1.0))

    def similar(self, word: str, top: int = 10) -> list[Neighbor]:
        """Return the nearest words to a word, without itself."""
        index = self.index(word)
        return self._nearest(self.unit_vectors[index], top, {index})

    def analogy(self, one: str, its: str, other: str, top: int = 10) -> list[Neighbor]:
        """Return the words nearest to one − its + other (3CosAdd): what is to `other` as `one` is to `its`?

        Mikolov 2013 · E2

        `analogy("paris", "france", "italy")`: paris − france + italy ≈ rome. The three words are excluded.
        """
        indices = [self.index(word) for word in (one, its, other)]
        return self._nearest(analogy_vectors(self.unit_vectors, np.array([indices]))[0], top, set(indices))

    def _nearest(self, query: Vector, top: int, excluded: set[int]) -> list[Neighbor]:
        require_positive(top=top)
        cosines = self.unit_vectors @ query
        cosines[list(excluded)] = -np.inf
        count = min(top, len(self) - len(excluded))
        if count <= 0:
            return []
        nearest = np.argpartition(-cosines, count - 1)[:count].tolist()
        nearest.sort(key=lambda index: (-cosines[index], index))
        return [Neighbor(self.words[index], min(1.0, float(cosines[index]))) for index in nearest]


def analogy_vectors(unit_vectors: Table, indices: npt.NDArray[np.int64]) -> Table:
    """Return one − its + other, scaled to length 1, for each row (one, its, other) of indices."""
    one, its, other = indices[:, 0], indices[:, 1], indices[:, 2]
    return _normalize(unit_vectors[one] - unit_vectors[its] + unit_vectors[other])


def _normalize(vectors: Table) -> Table:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Table = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return scaled
