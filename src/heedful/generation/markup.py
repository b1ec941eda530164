"""Tags put back into a translation: around the words that came from the words they were around.

The model never sees them. Each element goes to the stretch of the target that owes more to the words inside it than
to those outside (`occlusion`); elements stay inside one another as they were, whatever order they come in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from heedful.generation.occlusion import Debts
from heedful.text.tags import Element, role, tree

WEAK = 0.1
"""Nats below which a debt says little."""
SLOPE = 0.05
"""How much being far from the same place in the sentence speaks against a word: just enough to settle what is even."""


class Tag(NamedTuple):
    """A tag and the character it stands before."""

    place: int
    text: str


@dataclass(frozen=True)
class Placing:
    """The words of two texts, from character to character, and what those of the target owe to those of the source."""

    source: Sequence[tuple[int, int]]
    target: Sequence[tuple[int, int]]
    debts: Debts

    def stretch(self, words: range, room: range) -> tuple[float, range]:
        """The target words in `room` that best fit these source words, after how well they fit.

        They are the stretch with the largest sum of (debt to these − debt to others) / debt to all.
        """
        these = self.debts[words.start : words.stop].sum(0)
        others = self.debts.sum(0) - these
        middle = (words.start + words.stop) / 2 / max(1, len(self.source))
        best, total, start = (-math.inf, room[:0]), 0.0, room.start
        for j in room:
            away = abs(middle - (j + 0.5) / len(self.target))
            gain = float((these[j] - others[j]) / (these[j] + others[j] + WEAK)) - SLOPE * away
            total, start = (gain, j) if total <= 0 else (total + gain, start)
            if total > best[0]:
                best = total, range(start, j + 1)
        return best

    def characters(self, words: range) -> tuple[int, int]:
        return self.target[words[0]][0], self.target[words[-1]][1]


def place_tags(tags: Sequence[Tag], placing: Placing, length: int) -> list[Tag]:
    """The same tags with their places in a target of this length, in the order they have there."""
    found = tree([tag.text for tag in tags])
    all_words = range(len(placing.source)), range(len(placing.target))
    if found.whole:
        return list(_nested(found.elements, tags, placing, *all_words, (0, length)))
    # A tag without its partner is broken markup, or a part of a longer text: only the order in the source is sure.
    places: dict[int, int] = {}
    for element in (element for top in found.elements for element in top.all()):
        words = _words(element, tags, placing)
        stretch = placing.stretch(words, all_words[1])[1] if words else range(0)
        start, end = placing.characters(stretch) if stretch else _point(words, placing, *all_words, (0, length))[1]
        places |= {
            element.closing: end,
            element.opening: end if role(tags[element.opening].text) == "closes" else start,
        }
    order = accumulate((places[i] for i in range(len(tags))), max)
    return [Tag(place, tag.text) for place, tag in zip(order, tags, strict=True)]


def _nested(
    elements: Sequence[Element],
    tags: Sequence[Tag],
    placing: Placing,
    words: range,
    room: range,
    characters: tuple[int, int],
) -> Iterator[Tag]:
    """The tags of elements that lie in these source words, placed in the target words of `room`."""
    own = [_words(element, tags, placing) for element in elements]
    taken: list[tuple[range, tuple[int, int], int]] = []
    for i in sorted(range(len(elements)), key=lambda i: -len(own[i])):  # those with most words choose first
        gaps = [gap for gap in _free(room, [stretch for stretch, _, _ in taken]) if gap]
        if own[i] and gaps:
            best = (
                room if own[i] == words else max((placing.stretch(own[i], gap) for gap in gaps), key=itemgetter(0))[1]
            )
            taken.append((best, placing.characters(best), i))
        else:
            taken.append((*_point(own[i], placing, words, room, characters, [stretch for stretch, _, _ in taken]), i))
    for stretch, (start, end), i in sorted(taken, key=lambda place: (place[0].start, place[0].stop, place[2])):
        yield Tag(start, tags[elements[i].opening].text)
        yield from _nested(elements[i].inside, tags, placing, own[i], stretch, (start, end))
        if elements[i].closing > elements[i].opening:
            yield Tag(end, tags[elements[i].closing].text)


def _point(
    words: range,
    placing: Placing,
    around: range,
    room: range,
    characters: tuple[int, int],
    taken: Sequence[range] = (),
) -> tuple[range, tuple[int, int]]:
    """Where an element without words goes: before what came from the next source word, but into no other element."""
    if words.start <= around.start or not room:
        return room[:0], (characters[0], characters[0])
    if words.start >= around.stop:
        return room[len(room) :], (characters[1], characters[1])
    place = placing.stretch(range(words.start, words.start + 1), room)[1].start
    place = next((other.stop for other in taken if other.start < place < other.stop), place)
    if place == room.stop:
        return room[len(room) :], (characters[1], characters[1])
    return range(place, place), (placing.target[place][0], placing.target[place][0])


def _words(element: Element, tags: Sequence[Tag], placing: Placing) -> range:
    """The source words that an element is around; one half of a pair is around all on its side."""
    opening, closing = tags[element.opening], tags[element.closing]
    first = sum(end <= opening.place for _, end in placing.source)
    last = sum(start < closing.place for start, _ in placing.source)
    if element.opening == element.closing:
        match role(opening.text):
            case "opens":
                last = len(placing.source)
            case "closes":
                first = 0
            case "alone":
                last = first
    return range(first, max(first, last))


def _free(room: range, taken: Sequence[range]) -> list[range]:
    """What others have left of the room."""
    edges = [
        room.start,
        *(edge for stretch in sorted(taken, key=lambda s: s.start) for edge in (stretch.start, stretch.stop)),
        room.stop,
    ]
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
