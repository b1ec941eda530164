"""Terms that must be translated in one way: a file of `source term<TAB>required target term` lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heedful.data.line_reader import read_lines
from heedful.errors import DataError
from heedful.text.protected_spans import find_protected_spans
from heedful.text.sentence_splitter import split_sentences
from heedful.text.word_boundaries import find_words, inside_word


@dataclass(frozen=True)
class Glossary:
    """For each source term the target term it asks for."""

    terms: Mapping[str, str]

    @classmethod
    def from_option(cls, wish: str | Mapping[str, str] | None) -> Glossary | None:
        """From a file's name, or from the terms themselves; None stays None."""
        return wish if wish is None else cls.read(wish) if isinstance(wish, str) else cls(dict(wish))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Glossary:
        """A glossary file; blank lines, and lines that begin with #, say nothing."""
        terms: dict[str, str] = {}
        lines: dict[str, int] = {}
        for number, line in read_lines(Path(path)):
            if not line.strip() or line.startswith("#"):
                continue
            source, target = _entry(f"{path}:{number}", line.rstrip("\n"))
            if terms.get(source, target) != target:
                raise DataError(
                    f"{path}:{number}: '{source}' must become '{target}', but line {lines[source]} says "
                    f"'{terms[source]}'; keep one of them"
                )
            terms[source] = target
            lines.setdefault(source, number)
        if not terms:
            raise DataError(f"{path} holds no terms: each line is a source term, a tab and the target term it requires")
        return cls(terms)

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Each term in the text, from left to right and the longest first, as (start, end, target term).

        Upper and lower case are told apart, but a sentence may begin with a capital that the term does not have.
        """
        openings = set(sentence_starts(text))
        reached = 0
        for start, _ in find_words(text):
            if start < reached:
                continue
            for length in self._lengths:
                end = start + length
                if end <= len(text) and not inside_word(text, end):
                    found = self.terms.get(text[start:end])
                    if found is None and start in openings:
                        found = self.terms.get(text[start].lower() + text[start + 1 : end])
                    if found is not None:
                        yield start, end, found
                        reached = end
                        break

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(term) for term in self.terms}, reverse=True)


def sentence_starts(text: str) -> Iterator[int]:
    """Where the first word of each sentence begins; tags, quotes and brackets before it are no words."""
    for kept in find_protected_spans(text):
        if kept.kind == "tag":
            text = text[: kept.start] + " " * len(kept.text) + text[kept.end :]
    place = 0
    for piece, gap in split_sentences(text):
        yield from [place + start for start, _ in find_words(piece) if piece[start].isalnum()][:1]
        place += len(piece) + len(gap)


def _entry(place: str, line: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != 2 or not all(cells):
        raise DataError(f"{place}: expected a source term, a tab and the target term it requires, got {line!r:.80}")
    return cells[0], cells[1]
