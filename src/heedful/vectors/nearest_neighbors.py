"""Words and their vectors: who is near whom, and what is to this as that is to the other (E2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heedful.errors import DataError, UsageError

Vector = npt.NDArray[np.float32]
Table = npt.NDArray[np.float32]


class Neighbor(NamedTuple):
    """A word and its cosine."""

    word: str
    cosine: float


class WordTable:
    """A table of vectors, one a word."""

    def __init__(self, words: Sequence[str], table: Table, name: str = "this table") -> None:
        if not len(words):
            raise DataError(f"{name} holds no words")
        self.words, self.table, self.name = list(words), table, name
        self._places = {word: place for place, word in reversed(list(enumerate(self.words)))}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.find_index(word) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def find_index(self, word: str) -> int | None:
        """The word's row; if it is not there as it is spelt, then its lower-case one."""
        return self._places.get(word, self._places.get(word.lower()))

    def index(self, word: str) -> int:
        """The same, for a word that must be there."""
        found = self.find_index(word)
        if found is None:
            close = get_close_matches(word.lower(), self._common, n=1, cutoff=0.7)
            raise UsageError(f"{self.name} does not know '{word}'; " + (f"did you mean '{close[0]}'?" if close else ""
                             "try another word"))  # fmt: skip
        return found

    @property
    def _common(self) -> list[str]:
        """Enough to find a misspelt word among, soon."""
        return self.words[:100_000]

    @cached_property
    def unit_vectors(self) -> Table:
        """The vectors at length 1, so that a product of two is their cosine; a vector of zeros stays one."""
        lengths = np.linalg.norm(self.table, axis=1, keepdims=True)
        directions: Table = np.divide(self.table, lengths, out=np.zeros_like(self.table), where=lengths > 0)
        return directions

    def cosine(self, one: str, other: str) -> float:
        """u·v / (|u||v|) ∈ [−1, 1]        E2"""
        return float(np.clip(self.unit_vectors[self.index(one)] @ self.unit_vectors[self.index(other)], -1.0, 1.0))

    def similar(self, word: str, top: int = 10) -> list[Neighbor]:
        """The words nearest to a word, itself left out."""
        place = self.index(word)
        return self._nearest(self.unit_vectors[place], top, {place})

    def analogy(self, one: str, its: str, other: str, top: int = 10) -> list[Neighbor]:
        """What is to `other` as `one` is to `its`? The words nearest to one − its + other (3CosAdd).

        Mikolov 2013 · E2

        `analogy("paris", "france", "italy")`: paris − france + italy ≈ rome. The three words are left out.
        """
        places = [self.index(word) for word in (one, its, other)]
        return self._nearest(analogy_vectors(self.unit_vectors, np.array([places]))[0], top, set(places))

    def _nearest(self, direction: Vector, top: int, without: set[int]) -> list[Neighbor]:
        cosines = self.unit_vectors @ direction
        cosines[list(without)] = -np.inf
        number = min(top, len(self) - len(without))
        if number <= 0:
            return []
        found = np.argpartition(-cosines, number - 1)[:number]
        ordered = sorted(found.tolist(), key=lambda place: (-cosines[place], place))
        return [Neighbor(self.words[place], min(1.0, float(cosines[place]))) for place in ordered]


def analogy_vectors(unit_vectors: Table, indices: npt.NDArray[np.int64]) -> Table:
    """one − its + other for each row of places, at length 1."""
    found = unit_vectors[indices[:, 0]] - unit_vectors[indices[:, 1]] + unit_vectors[indices[:, 2]]
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    scaled: Table = np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)
    return scaled
