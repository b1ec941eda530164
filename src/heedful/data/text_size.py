"""The size of a text in words, characters and bytes: the units its prediction is measured per."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from heedful.data.unicode_scripts import unspaced_letters


class TextSize(NamedTuple):
    """The size of a text; `words` is None where the script does not separate them by spaces."""

    words: int | None
    characters: int
    bytes: int

    @classmethod
    def measure(cls, texts: Iterable[str]) -> TextSize:
        """Measure texts together."""
        counter = TextCounter()
        for text in texts:
            counter.add(text)
        return counter.size

    def scaled(self, share: float) -> TextSize:
        """The size of about this share of the text."""
        words = None if self.words is None else round(self.words * share)
        return TextSize(words, round(self.characters * share), round(self.bytes * share))


class TextCounter:
    """Adds up the size of texts, a text at a time."""

    def __init__(self) -> None:
        self._words = self._unspaced_letters = self._characters = self._bytes = 0

    def add(self, text: str) -> None:
        self._words += len(text.split())
        self._unspaced_letters += unspaced_letters(text)
        self._characters += len(text)
        self._bytes += len(text.encode())

    @property
    def size(self) -> TextSize:
        """The size so far. More unspaced letters than runs between spaces: those runs are not words."""
        words = None if self._unspaced_letters > self._words else self._words
        return TextSize(words, self._characters, self._bytes)
