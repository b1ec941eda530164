"""Place tags in a translation around the words aligned with those they enclosed in the source.

Each element is placed around the target span that is best aligned with its words (`occlusion`). Elements keep their
nesting, whatever their order in the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from heedful.generation.terminology.occlusion import AlignmentShares
from heedful.text.markup_tags import Element, parse_tags, tag_role

SMOOTHING = 0.1
"""Added to the sum of shares, so that words with hardly any score near 0."""
DISTANCE_PENALTY = 0.05
"""Weight of the distance from the same relative position in the sentence: just enough to break ties."""


class Tag(NamedTuple):
    """A tag and the index of the character after it."""

    position: int
    text: str


@dataclass(frozen=True)
class WordAlignment:
    """Character spans of the words of two texts, and how much of each target word is due to each source word."""

    source: Sequence[tuple[int, int]]
    target: Sequence[tuple[int, int]]
    shares: AlignmentShares

    def best_span(self, words: range, candidates: range) -> tuple[float, range]:
        """The run of candidate target words that best fits these source words, with its score.

        It has the largest sum of (share of these − share of others) / share of all.
        """
        inside = self.shares[words.start : words.stop].sum(0)
        outside = self.shares.sum(0) - inside
        middle = (words.start + words.stop) / 2 / max(1, len(self.source))
        best, total, start = (-math.inf, candidates[:0]), 0.0, candidates.start
        for j in candidates:
            distance = abs(middle - (j + 0.5) / len(self.target))
            gain = float((inside[j] - outside[j]) / (inside[j] + outside[j] + SMOOTHING)) - DISTANCE_PENALTY * distance
            total, start = (gain, j) if total <= 0 else (total + gain, start)
            if total > best[0]:
                best = total, range(start, j + 1)
        return best

    def characters(self, words: range) -> tuple[int, int]:
        return self.target[words[0]][0], self.target[words[-1]][1]


class TagPosition(NamedTuple):
    """The position of an element: target words (none if it is between two words), and characters."""

    words: range
    start: int
    end: int


def place_tags(tags: Sequence[Tag], alignment: WordAlignment, length: int) -> list[Tag]:
    """The tags with their positions in a target of this length, in target order."""
    tree = parse_tags([tag.text for tag in tags])
    source, target = range(len(alignment.source)), TagPosition(range(len(alignment.target)), 0, length)
    if tree.balanced:
        return list(_place_elements(tree.elements, tags, alignment, source, target))
    # A tag without its partner is broken markup, or half of a longer text's: only the order in the source is certain.
    positions: dict[int, int] = {}
    for element in (element for top in tree.elements for element in top.walk()):
        position = _place_element(_enclosed_words(element, tags, alignment), alignment, source, target, [])
        closes = tag_role(tags[element.opening].text) == "closes"
        positions |= {element.closing: position.end, element.opening: position.end if closes else position.start}
    ordered = accumulate((positions[i] for i in range(len(tags))), max)
    return [Tag(position, tag.text) for position, tag in zip(ordered, tags, strict=True)]


def _place_elements(
    elements: Sequence[Element], tags: Sequence[Tag], alignment: WordAlignment, source: range, parent: TagPosition
) -> Iterator[Tag]:
    """Place elements that enclose some of these source words within their parent's target span."""
    enclosed = [_enclosed_words(element, tags, alignment) for element in elements]
    positions: dict[int, TagPosition] = {}
    for i in sorted(range(len(elements)), key=lambda i: -len(enclosed[i])):  # elements with most words first
        taken = [position.words for position in positions.values() if position.words]
        positions[i] = _place_element(enclosed[i], alignment, source, parent, taken)
    for i in sorted(positions, key=lambda i: (positions[i].words.start, positions[i].words.stop, i)):
        yield Tag(positions[i].start, tags[elements[i].opening].text)
        yield from _place_elements(elements[i].children, tags, alignment, enclosed[i], positions[i])
        if elements[i].closing > elements[i].opening:
            yield Tag(positions[i].end, tags[elements[i].closing].text)


def _place_element(
    words: range, alignment: WordAlignment, source: range, parent: TagPosition, taken: Sequence[range]
) -> TagPosition:
    """The best position within the parent for an element around these source words, excluding taken words."""
    free = _subtract(parent.words, taken)
    if words and words == source and free == [parent.words]:
        return TagPosition(parent.words, *alignment.characters(parent.words))
    if words and free:
        _, best = max((alignment.best_span(words, gap) for gap in free), key=itemgetter(0))
        return TagPosition(best, *alignment.characters(best))
    # Without words, or with all of them taken: before the target of the next source word.
    if words.start <= source.start or not parent.words:
        return TagPosition(parent.words[:0], parent.start, parent.start)
    index = parent.words.stop
    if words.start < source.stop:
        index = alignment.best_span(range(words.start, words.start + 1), parent.words)[1].start
        index = next((span.stop for span in taken if span.start < index < span.stop), index)
    character = parent.end if index == parent.words.stop else alignment.target[index][0]
    return TagPosition(range(index, index), character, character)


def _enclosed_words(element: Element, tags: Sequence[Tag], alignment: WordAlignment) -> range:
    """The source words that an element encloses; an unpaired tag encloses all words on its side."""
    opening, closing = tags[element.opening], tags[element.closing]
    first = sum(end <= opening.position for _, end in alignment.source)
    last = sum(start < closing.position for start, _ in alignment.source)
    if element.opening == element.closing:
        unpaired = {"opens": (first, len(alignment.source)), "closes": (0, last), "alone": (first, first)}
        first, last = unpaired[tag_role(opening.text)]
    return range(first, max(first, last))


def _subtract(words: range, taken: Sequence[range]) -> list[range]:
    """The runs of words that are not taken."""
    boundaries = [words.start, *sorted(edge for span in taken for edge in (span.start, span.stop)), words.stop]
    gaps = zip(boundaries[::2], boundaries[1::2], strict=True)
    return [range(first, last) for first, last in gaps if first < last]
