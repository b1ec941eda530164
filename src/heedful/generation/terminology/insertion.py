"""A free translation with what is required woven in.

Each goes where the words are that came from the same place in the source, and replaces them; or between two words, if
there are none. Tags go around the words that came from those they were around.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np

from heedful.generation.terminology.assembly import TextPart, assemble
from heedful.generation.terminology.glossary import sentence_starts
from heedful.generation.terminology.occlusion import AlignmentShares, TextWords
from heedful.generation.terminology.requirements import ModelInput, Requirement
from heedful.generation.terminology.tag_placement import WordAlignment, place_tags
from heedful.text.word_boundaries import find_words, inside_word

Span = tuple[int, int]
MIN_REPLACE_SCORE = -0.4
"""How well words must fit (−1 to 1 each) to be replaced: about a third of such a word came from this source word."""


@dataclass(frozen=True)
class TargetWord:
    """A word of the target, the blanks before it, and its shares in the source words."""

    gap: str
    text: str
    shares: AlignmentShares
    fixed: bool = False
    """Required, or part of a beginning that must stay."""

    @property
    def is_word(self) -> bool:
        """Rather than a sign."""
        return self.text[0].isalnum()


def target_words(view: ModelInput, text: str) -> TextWords:
    """The words of a translation; each wanted term that it holds by itself is one."""
    return TextWords(text, find_words(text, sorted(locate_terms(text, view.required).values())))


def insert_requirements(view: ModelInput, text: str, shares: AlignmentShares, beginning: str = "") -> str:
    """The translation with all that is wanted of it. `shares` are those of its `target_words`."""
    held = locate_terms(text, view.required)
    cells = _cells(view, text, shares, held, len(beginning))
    for i, found in enumerate(view.required):
        if i not in held:
            cells = _with(cells, found, view.in_words.words)
    woven, spans = _joined(cells)
    if not view.tags and all(found.kind == "term" for found in view.required):
        return woven
    tags = place_tags(view.tags, _placing(cells, view.in_words.words), len(woven))
    exact = [(tag.position, tag.position, tag.text) for tag in tags]
    exact += [(*span, cell.text) for span, cell in zip(spans, cells, strict=True) if cell.fixed]
    parts, reached = [], 0
    for start, end, piece in sorted(exact, key=itemgetter(0, 1)):
        parts += [TextPart(woven[reached:start], False), TextPart(piece, True)]
        reached = end
    return assemble([*parts, TextPart(woven[reached:], False)])


def locate_terms(text: str, wanted: Sequence[Requirement]) -> dict[int, Span]:
    """Where in a text these terms stand already, none inside another; what is longer is sought first."""
    found: dict[int, Span] = {}
    openings = set(sentence_starts(text))
    terms = [i for i, each in enumerate(wanted) if each.kind == "term"]
    for i in sorted(terms, key=lambda i: -len(wanted[i].text)):
        for start, end in _occurrences(text, wanted[i].text, openings):
            if all(start >= last or end <= first for first, last in found.values()):
                found[i] = start, end
                break
    return found


def _occurrences(text: str, term: str, openings: Collection[int]) -> Iterator[Span]:
    """In whole words, and with a capital only where a sentence begins."""
    for match in re.finditer(f"{re.escape(term)}|{re.escape(_capital(term))}", text):
        start, end = match.span()
        if not inside_word(text, start) and not inside_word(text, end) and (match.group() == term or start in openings):
            yield start, end


def _cells(view: ModelInput, text: str, shares: AlignmentShares, held: dict[int, Span], fixed: int) -> list[TargetWord]:
    places = target_words(view, text).words
    gaps = [text[end:start] for (_, end), (start, _) in pairwise([(0, 0), *places])]
    columns = zip(places, gaps, shares.T, strict=True)
    cells = [TargetWord(gap, text[start:end], column, start < fixed) for (start, end), gap, column in columns]
    for i, span in held.items():
        row = _row(view.required[i], view.in_words.words)
        cells[places.index(span)] = replace(cells[places.index(span)], shares=row, fixed=True)
    return cells


def _with(cells: Sequence[TargetWord], wanted: Requirement, source: Sequence[Span]) -> list[TargetWord]:
    """The cells with one more of the wanted, in place of those that owe most to its source, or before them."""
    row = _row(wanted, source)
    at = int(row.argmax())
    placing = _placing(cells, source)
    score, best = max(
        (placing.best_span(range(at, at + 1), room) for room in _free(cells)),
        key=itemgetter(0),
        default=(0.0, range(len(cells), len(cells))),
    )
    best = (
        best if score > MIN_REPLACE_SCORE and any(cell.is_word for cell in cells[best.start : best.stop]) else best[:0]
    )
    before, after = list(cells[: best.start]), list(cells[best.stop :])
    gap = cells[best.start].gap if best else " " if before else ""
    so_far = _joined(before)[0] + gap
    opens = wanted.kind == "term" and len(so_far) in sentence_starts(so_far + wanted.text)
    text = _capital(wanted.text) if opens else wanted.text
    gap = gap or _between(so_far, text)
    if after:
        blank = " " if not best and after[0].is_word else _between(text, after[0].text)
        after[0] = replace(after[0], gap=after[0].gap or blank)
    return [*before, TargetWord(gap, text, row, True), *after]


def _between(before: str, after: str) -> str:
    """A blank, where two words would become one."""
    return " " if inside_word(before + after, len(before)) else ""


def _free(cells: Sequence[TargetWord]) -> Iterator[range]:
    """Neighbours that may be replaced."""
    edges = [-1, *(i for i, cell in enumerate(cells) if cell.fixed), len(cells)]
    yield from (range(first + 1, last) for first, last in pairwise(edges) if last > first + 1)


def _row(wanted: Requirement, source: Sequence[Span]) -> AlignmentShares:
    """The shares of what is known to have come from one word of the source."""
    return np.array([float(span == (wanted.start, wanted.end)) for span in source])


def _placing(cells: Sequence[TargetWord], source: Sequence[Span]) -> WordAlignment:
    shares = np.array([cell.shares for cell in cells]).reshape(len(cells), len(source)).T
    return WordAlignment(source, _joined(cells)[1], shares)


def _joined(cells: Sequence[TargetWord]) -> tuple[str, list[Span]]:
    text, spans = "", []
    for cell in cells:
        text += cell.gap + cell.text
        spans.append((len(text) - len(cell.text), len(text)))
    return text, spans


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
