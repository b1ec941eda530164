"""Insertion of requirements into a free translation.

Each requirement replaces the target words aligned with its source span, or is inserted between two words if there are
none. Tags are placed around the words aligned with those they enclosed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np

from heedful.generation.terminology.glossary import sentence_starts
from heedful.generation.terminology.occlusion import AlignmentShares, TextWords
from heedful.generation.terminology.protected_join import TextPart, assemble
from heedful.generation.terminology.requirements import ModelInput, RequiredSpan
from heedful.generation.terminology.tag_placement import WordAlignment, place_tags
from heedful.text.word_boundaries import find_words, inside_word

Span = tuple[int, int]
MIN_REPLACE_SCORE = -0.4
"""Score (−1 to 1 per word) above which words are replaced: about a third of the word is due to the source span."""


@dataclass(frozen=True)
class TargetWord:
    """A word of the translation, the whitespace before it, and the share of it that is due to each source word."""

    whitespace: str
    text: str
    shares: AlignmentShares
    fixed: bool = False
    """Whether it is required, or part of a forced prefix."""

    @property
    def is_word(self) -> bool:
        """Whether it is a word rather than punctuation."""
        return self.text[0].isalnum()


def target_words(source: ModelInput, text: str) -> TextWords:
    """The words of a translation; a required term that it already contains counts as one word."""
    return TextWords(text, find_words(text, sorted(locate_terms(text, source.required).values())))


def insert_requirements(source: ModelInput, text: str, shares: AlignmentShares, prefix: str = "") -> str:
    """The translation with everything the source requires. `shares` are those of its `target_words`."""
    located = locate_terms(text, source.required)
    words = _split_target(source, text, shares, located, len(prefix))
    for i, requirement in enumerate(source.required):
        if i not in located:
            words = _insert(words, requirement, source.words.spans)
    inserted, spans = _join(words)
    if not source.tags and all(requirement.kind == "term" for requirement in source.required):
        return inserted
    tags = place_tags(source.tags, _alignment(words, source.words.spans), len(inserted))
    exact = [(tag.position, tag.position, tag.text) for tag in tags]
    exact += [(*span, word.text) for span, word in zip(spans, words, strict=True) if word.fixed]
    parts, copied_until = [], 0
    for start, end, exact_text in sorted(exact, key=itemgetter(0, 1)):
        parts += [TextPart(inserted[copied_until:start], False), TextPart(exact_text, True)]
        copied_until = end
    return assemble([*parts, TextPart(inserted[copied_until:], False)])


def locate_terms(text: str, required: Sequence[RequiredSpan]) -> dict[int, Span]:
    """Spans of the required terms that a text already contains, by index; long terms first, without overlap."""
    located: dict[int, Span] = {}
    first_words = set(sentence_starts(text))
    terms = [i for i, requirement in enumerate(required) if requirement.kind == "term"]
    for i in sorted(terms, key=lambda i: -len(required[i].text)):
        for start, end in _occurrences(text, required[i].text, first_words):
            if all(start >= last or end <= first for first, last in located.values()):
                located[i] = start, end
                break
    return located


def _occurrences(text: str, term: str, first_words: Collection[int]) -> Iterator[Span]:
    """Whole-word matches; a capital that the term does not have is allowed at the start of a sentence."""
    for match in re.finditer(f"{re.escape(term)}|{re.escape(_capitalize(term))}", text):
        start, end = match.span()
        is_whole_word = not inside_word(text, start) and not inside_word(text, end)
        if is_whole_word and (match.group() == term or start in first_words):
            yield start, end


def _split_target(
    source: ModelInput, text: str, shares: AlignmentShares, located: dict[int, Span], prefix_length: int
) -> list[TargetWord]:
    spans = target_words(source, text).spans
    gaps = [text[end:start] for (_, end), (start, _) in pairwise([(0, 0), *spans])]
    columns = zip(spans, gaps, shares.T, strict=True)
    words = [TargetWord(gap, text[start:end], column, start < prefix_length) for (start, end), gap, column in columns]
    for i, span in located.items():
        index = spans.index(span)
        words[index] = replace(words[index], shares=_one_hot(source.required[i], source.words.spans), fixed=True)
    return words


def _insert(words: Sequence[TargetWord], requirement: RequiredSpan, source: Sequence[Span]) -> list[TargetWord]:
    """The words with one more requirement, which replaces those aligned with its source span, or precedes them."""
    shares = _one_hot(requirement, source)
    source_word = int(shares.argmax())
    alignment = _alignment(words, source)
    score, best = max(
        (alignment.best_span(range(source_word, source_word + 1), free) for free in _replaceable(words)),
        key=itemgetter(0),
        default=(0.0, range(len(words), len(words))),
    )
    if score <= MIN_REPLACE_SCORE or not any(word.is_word for word in words[best.start : best.stop]):
        best = best[:0]
    before, after = list(words[: best.start]), list(words[best.stop :])
    gap = words[best.start].whitespace if best else " " if before else ""
    left = _join(before)[0] + gap
    starts_sentence = requirement.kind == "term" and len(left) in sentence_starts(left + requirement.text)
    text = _capitalize(requirement.text) if starts_sentence else requirement.text
    gap = gap or _separator(left, text)
    if after:
        space = " " if not best and after[0].is_word else _separator(text, after[0].text)
        after[0] = replace(after[0], whitespace=after[0].whitespace or space)
    return [*before, TargetWord(gap, text, shares, True), *after]


def _separator(before: str, after: str) -> str:
    """A space where two words would otherwise merge."""
    return " " if inside_word(before + after, len(before)) else ""


def _replaceable(words: Sequence[TargetWord]) -> Iterator[range]:
    """Runs of words that may be replaced."""
    boundaries = [-1, *(i for i, word in enumerate(words) if word.fixed), len(words)]
    yield from (range(first + 1, last) for first, last in pairwise(boundaries) if last > first + 1)


def _one_hot(requirement: RequiredSpan, source: Sequence[Span]) -> AlignmentShares:
    """Shares of a text that comes from the requirement's source span alone."""
    return np.array([float(span == (requirement.start, requirement.end)) for span in source])


def _alignment(words: Sequence[TargetWord], source: Sequence[Span]) -> WordAlignment:
    shares = np.array([word.shares for word in words]).reshape(len(words), len(source)).T
    return WordAlignment(source, _join(words)[1], shares)


def _join(words: Sequence[TargetWord]) -> tuple[str, list[Span]]:
    """The text of these words, and their spans in it."""
    text, spans = "", []
    for word in words:
        text += word.whitespace + word.text
        spans.append((len(text) - len(word.text), len(text)))
    return text, spans


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
