"""Glossaries: terms with their required translation, read from a file of `source term<TAB>target term` lines."""

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
    """The required target term of each source term."""

    terms: Mapping[str, str]

    @classmethod
    def from_option(cls, option: str | Mapping[str, str] | None) -> Glossary | None:
        """From a file's name, or from the terms themselves; None stays None."""
        return option if option is None else cls.read(option) if isinstance(option, str) else cls(dict(option))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Glossary:
        """Read a glossary file; blank lines and lines that begin with # are skipped."""
        terms: dict[str, str] = {}
        lines: dict[str, int] = {}
        for number, line in read_lines(Path(path)):
            if not line.strip() or line.startswith("#"):
                continue
            source, target = _parse_line(f"{path}:{number}", line.rstrip("\n"))
            if terms.get(source, target) != target:
                raise DataError(
                    f"{path}:{number}: '{source}' must become '{target}', but line {lines[source]} says "
                    f"'{terms[source]}'; keep one of them"
                )
            terms[source] = target
            lines.setdefault(source, number)
        if not terms:
            raise DataError(f"{path} has no terms: each line is a source term, a tab and the target term it requires")
        return cls(terms)

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Each term in the text, left to right, the longest first, as (start, end, target term).

        Matching is case-sensitive, except that the first word of a sentence may have a capital the term does not.
        """
        first_words = set(sentence_starts(text))
        matched_until = 0
        for start, _ in find_words(text):
            if start < matched_until:
                continue
            for length in self._lengths:
                end = start + length
                if end <= len(text) and not inside_word(text, end):
                    term = self.terms.get(text[start:end])
                    if term is None and start in first_words:
                        term = self.terms.get(text[start].lower() + text[start + 1 : end])
                    if term is not None:
                        yield start, end, term
                        matched_until = end
                        break

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(term) for term in self.terms}, reverse=True)


def sentence_starts(text: str) -> Iterator[int]:
    """The index of each sentence's first word, after any tags, quotes and brackets."""
    for span in find_protected_spans(text):
        if span.kind == "tag":
            text = text[: span.start] + " " * len(span.text) + text[span.end :]
    offset = 0
    for sentence, whitespace in split_sentences(text):
        yield from [offset + start for start, _ in find_words(sentence) if sentence[start].isalnum()][:1]
        offset += len(sentence) + len(whitespace)


def _parse_line(location: str, line: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != 2 or not all(cells):
        raise DataError(f"{location}: expected a source term, a tab and the target term it requires, got {line!r:.80}")
    return cells[0], cells[1]
