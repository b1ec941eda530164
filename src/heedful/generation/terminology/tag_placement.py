"""Tags put back into a translation: around the words that came from the words they were around.

Each element goes to the stretch of the target that came from the words inside it rather than from others
(`occlusion`). Elements stay inside one another as they were, whatever order they come in.
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
"""A share that says little."""
DISTANCE_PENALTY = 0.05
"""How much being far from the same place in the sentence speaks against a word: just enough to settle what is even."""


class Tag(NamedTuple):
    """A tag and the character it stands before."""

    position: int
    text: str


@dataclass(frozen=True)
class WordAlignment:
    """The words of two texts, from character to character, and the shares of those of the source in the target's."""

    source: Sequence[tuple[int, int]]
    target: Sequence[tuple[int, int]]
    shares: AlignmentShares

    def best_span(self, words: range, room: range) -> tuple[float, range]:
        """The target words in `room` that best fit these source words, after how well they fit.

        They are the stretch with the largest sum of (share of these − share of others) / share of all.
        """
        these = self.shares[words.start : words.stop].sum(0)
        others = self.shares.sum(0) - these
        middle = (words.start + words.stop) / 2 / max(1, len(self.source))
        best, total, start = (-math.inf, room[:0]), 0.0, room.start
        for j in room:
            away = abs(middle - (j + 0.5) / len(self.target))
            gain = float((these[j] - others[j]) / (these[j] + others[j] + SMOOTHING)) - DISTANCE_PENALTY * away
            total, start = (gain, j) if total <= 0 else (total + gain, start)
            if total > best[0]:
                best = total, range(start, j + 1)
        return best

    def characters(self, words: range) -> tuple[int, int]:
        return self.target[words[0]][0], self.target[words[-1]][1]


class TagPosition(NamedTuple):
    """Where an element goes: target words (none, for one that stands between two), and characters."""

    words: range
    start: int
    end: int


def place_tags(tags: Sequence[Tag], placing: WordAlignment, length: int) -> list[Tag]:
    """The same tags with their places in a target of this length, in the order they have there."""
    found = parse_tags([tag.text for tag in tags])
    source, everywhere = range(len(placing.source)), TagPosition(range(len(placing.target)), 0, length)
    if found.balanced:
        return list(_nested(found.elements, tags, placing, source, everywhere))
    # A tag without its partner is broken markup, or half of a longer text's: only the order in the source is sure.
    places: dict[int, int] = {}
    for element in (element for top in found.elements for element in top.walk()):
        place = _place(_words(element, tags, placing), placing, source, everywhere, [])
        closes = tag_role(tags[element.opening].text) == "closes"
        places |= {element.closing: place.end, element.opening: place.end if closes else place.start}
    order = accumulate((places[i] for i in range(len(tags))), max)
    return [Tag(place, tag.text) for place, tag in zip(order, tags, strict=True)]


def _nested(
    elements: Sequence[Element], tags: Sequence[Tag], placing: WordAlignment, source: range, room: TagPosition
) -> Iterator[Tag]:
    """The tags of elements that lie in these source words, placed in a part of the target."""
    own = [_words(element, tags, placing) for element in elements]
    places: dict[int, TagPosition] = {}
    for i in sorted(range(len(elements)), key=lambda i: -len(own[i])):  # those with most words choose first
        places[i] = _place(own[i], placing, source, room, [place.words for place in places.values() if place.words])
    for i in sorted(places, key=lambda i: (places[i].words.start, places[i].words.stop, i)):
        yield Tag(places[i].start, tags[elements[i].opening].text)
        yield from _nested(elements[i].children, tags, placing, own[i], places[i])
        if elements[i].closing > elements[i].opening:
            yield Tag(places[i].end, tags[elements[i].closing].text)


def _place(
    words: range, placing: WordAlignment, source: range, room: TagPosition, taken: Sequence[range]
) -> TagPosition:
    """The best place in the room for an element around these of the source words there, apart from what is taken."""
    free = _left(room.words, taken)
    if words and words == source and free == [room.words]:
        return TagPosition(room.words, *placing.characters(room.words))
    if words and free:
        _, best = max((placing.best_span(words, gap) for gap in free), key=itemgetter(0))
        return TagPosition(best, *placing.characters(best))
    # It has no words, or there are none left for it: before what came from the source word after it.
    if words.start <= source.start or not room.words:
        return TagPosition(room.words[:0], room.start, room.start)
    at = room.words.stop
    if words.start < source.stop:
        at = placing.best_span(range(words.start, words.start + 1), room.words)[1].start
        at = next((other.stop for other in taken if other.start < at < other.stop), at)
    character = room.end if at == room.words.stop else placing.target[at][0]
    return TagPosition(range(at, at), character, character)


def _words(element: Element, tags: Sequence[Tag], placing: WordAlignment) -> range:
    """The source words that an element is around; half of a pair is around all on its side."""
    opening, closing = tags[element.opening], tags[element.closing]
    first = sum(end <= opening.position for _, end in placing.source)
    last = sum(start < closing.position for start, _ in placing.source)
    if element.opening == element.closing:
        alone = {"opens": (first, len(placing.source)), "closes": (0, last), "alone": (first, first)}
        first, last = alone[tag_role(opening.text)]
    return range(first, max(first, last))


def _left(room: range, taken: Sequence[range]) -> list[range]:
    """What others have left of the room."""
    edges = [room.start, *sorted(edge for words in taken for edge in (words.start, words.stop)), room.stop]
    return [range(*gap) for gap in zip(edges[::2], edges[1::2], strict=True) if gap[0] < gap[1]]
