"""A text in sentences, and a long sentence in parts that a model can read. Put together again they are the text, to
the character: `"".join(text + gap for text, gap in pieces)`.

A border that is missed costs little: the model reads two sentences at once. One that is invented tears a sentence
apart. So wherever a full stop can be read in two ways ("Dr.", "z. B.", "am 3. Mai"), it is no border.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

Spans = Sequence[tuple[int, int]]
"""Stretches of a text, from character to character, in order and apart."""


class TextSegment(NamedTuple):
    """A part of a text and the blanks after it; blanks that open a text follow an empty part."""

    text: str
    whitespace: str


_CLOSING = r"[\"'”’»›“‘)\]}」』）】》〉〕］｝]"
STOP = re.compile(
    rf"[.!?…‥‼⁇⁈⁉؟۔।॥։።᠃᠉།\u037e]+{_CLOSING}*(?=\s)"
    rf"|[。！？｡။។៕]+(?!{_CLOSING}|[。！？｡။។៕])|[。！？｡]+{_CLOSING}+(?=\s)"
)
"""Where a sentence may end. The stops of Chinese, Japanese, Burmese and Khmer need no blank after them; but behind a
closing quote they do, since there the sentence goes on more often than not: 「はい。」と言った。"""
LINE = re.compile(r"[\n\r\v\f\x85\u2028\u2029]")
OPENING = re.compile(r"[\s\"'“”„‘’‚«»‹›(\[{¿¡「『（【《*_–—-]*")
LAST_WORD = re.compile(r"[^\s\"'“”„‘’‚«»‹›()\[\]{}¿¡/]*\Z")
UNFINISHED = re.compile(r"\w|\d\d|[IVXLC]+|.*[^\W\d]\..*")
"""Before a full stop: an initial, a short or Roman ordinal, or what has stops inside (U.S., e.g.)."""
CLAUSE = re.compile(r"[,;:،؛)\]][\"'”’»]*\s|\s[—–-]\s|[—、，；：]")
BLANK = re.compile(r"\s")

_ABBREVIATED = """
mr mrs ms messrs dr prof rev hon gen col lt sgt capt maj st sr jr vs etc vol fig figs eq eds pp approx dept blvd jan feb
apr jun jul aug sept oct nov dec nr abs bd bzw ca evtl ggf inkl exkl usw vgl zzgl str tel hr fr frl ing dipl mio mrd tsd
sog geb gest jh jhd mme mlle mgr env cf chap tél sig sigg sra srta dña ud uds vd vds pág núm avda dott ecc cfr pag
dhr mevr bijv enz blz dvs osv kl ang np tzw tj godz čl tzv např apod atd
гг ул им стр рис табл тыс млн млрд руб коп проф акад др пр см напр
"""
ABBREVIATIONS = frozenset(_ABBREVIATED.split())
"""Words that keep a full stop inside a sentence."""
BEFORE_NUMBERS = frozenset({"no", "nos", "art", "est", "mar", "sep", "av", "ed"})
"""Words that do so before a number only."""


def split_sentences(
    text: str,
    *,
    limit: int | None = None,
    length: Callable[[str], int] = len,
    one_per_segment: bool = True,
    protected: Spans = (),
) -> list[TextSegment]:
    """The sentences of a text, none longer than `limit` as `length` measures it, with the blanks between them.

    A line break is always a border. Unless `singly`, a line that fits stays whole, and of one that does not, as many
    sentences stay together as fit. A sentence that is too long is cut at a clause mark, or else at a blank, or else
    anywhere; but never inside a stretch of `whole`, which alone may exceed the limit.
    """

    def fits(start: int, end: int) -> bool:
        return limit is None or length(text[start:end].strip()) <= limit

    lines = (found.end() for found in LINE.finditer(text))
    ends: list[int] = []
    for start, end in pairwise([0, *(place for place in lines if _around(place, protected) is None), len(text)]):
        if not one_per_segment and fits(start, end):
            ends.append(end)
            continue
        borders = [start, *_stops(text, start, end, protected), end]
        parts = [cut for first, last in pairwise(borders) for cut in _fitting(text, first, last, fits, protected)]
        ends += parts if one_per_segment else _together(start, parts, fits)
    return _cut(text, ends)


def join_segments(segments: Sequence[TextSegment], translations: Sequence[str]) -> str:
    """What became of the pieces, with the blanks between them.

    Chinese and Japanese set no blank between sentences, most others do: where source and target differ in this, one
    is added or left out.
    """
    result = ""
    for (source, gap), text in zip(segments, translations, strict=True):
        if result and text and source and not result[-1].isspace() and not _wide(result[-1]) and not _wide(text[0]):
            result += " "
        result += text + ("" if gap == " " and text and _wide(text[-1]) else gap)
    return result


def _stops(text: str, start: int, end: int, whole: Spans) -> list[int]:
    """Where one sentence ends and another follows, between two places."""
    found = (stop.end() for stop in STOP.finditer(text, start, end) if _ends_sentence(text, stop, end))
    return [place for place in found if place < end and _around(place, whole) is None]


def _ends_sentence(text: str, stop: re.Match[str], end: int) -> bool:
    following = OPENING.match(text, stop.end(), end).end()  # type: ignore[union-attr]  # it matches nothing at least
    if following < end and text[following].islower():
        return False
    if text[stop.start()] != "." or text.startswith("..", stop.start()):
        return True
    word = LAST_WORD.search(text, max(0, stop.start() - 40), stop.start()).group()  # type: ignore[union-attr]
    if word.lower() in BEFORE_NUMBERS and text[following : following + 1].isdigit():
        return False
    return word.lower() not in ABBREVIATIONS and not UNFINISHED.fullmatch(word)


def _fitting(text: str, start: int, end: int, fits: Callable[[int, int], bool], whole: Spans) -> Iterator[int]:
    """The ends of parts that fit, from a text that may not."""
    cut = None if fits(start, end) else _middle(text, start, end, whole)
    if cut is None:
        yield end
    else:
        yield from _fitting(text, start, cut, fits, whole)
        yield from _fitting(text, cut, end, fits, whole)


def _middle(text: str, start: int, end: int, whole: Spans) -> int | None:
    """The best place near the middle to cut at, so that neither part is a crumb."""
    middle, quarter = (start + end) // 2, (end - start) // 4
    for mark in (CLAUSE, BLANK):
        found = (match.end() for match in mark.finditer(text, start + quarter, end - quarter))
        places = [place for place in found if start < place < end and _around(place, whole) is None]
        if places:
            return min(places, key=lambda place: abs(place - middle))
    while middle < end and unicodedata.category(text[middle])[0] == "M":  # an accent stays with its letter
        middle += 1
    places = [place for place in _around(middle, whole) or (middle, (start + end) // 2) if start < place < end]
    return min(places, key=lambda place: abs(place - middle), default=None)


def _together(start: int, ends: Sequence[int], fits: Callable[[int, int], bool]) -> Iterator[int]:
    """As many neighbours in one piece as fit."""
    for end, following in pairwise(ends):
        if not fits(start, following):
            yield end
            start = end
    yield ends[-1]


def _cut(text: str, ends: Sequence[int]) -> list[TextSegment]:
    pieces: list[TextSegment] = []
    for start, end in pairwise([0, *ends]):
        part = text[start:end]
        words = part.strip()
        before, after = (part, "") if not words else (part[: part.index(words[0])], part[len(part.rstrip()) :])
        if before:
            last = pieces.pop() if pieces else TextSegment("", "")
            pieces.append(TextSegment(last.text, last.whitespace + before))
        if words:
            pieces.append(TextSegment(words, after))
    return pieces


def _around(place: int, whole: Spans) -> tuple[int, int] | None:
    """The stretch that this place would tear apart."""
    index = bisect_left(whole, (place, 0)) - 1
    return whole[index] if index >= 0 and whole[index][1] > place else None


def _wide(sign: str) -> bool:
    return unicodedata.east_asian_width(sign) in "WF"
