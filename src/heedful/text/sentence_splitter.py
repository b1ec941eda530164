"""Split text into sentences, and long sentences into parts that fit a model; lossless.

`"".join(text + whitespace for text, whitespace in segments)` is the text again. A missed boundary costs little (the
model reads two sentences at once), a false one tears a sentence apart; so an ambiguous full stop ("Dr.", "z. B.") is no
boundary. Hand-written because it must be lossless, multilingual, and never split a protected span.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

Spans = Sequence[tuple[int, int]]
"""(start, end) of parts of a text, in order and disjoint."""


class TextSegment(NamedTuple):
    """A part of a text and the whitespace after it; leading whitespace follows an empty part."""

    text: str
    whitespace: str


_CLOSING = r"[\"'”’»›“‘)\]}」』）】》〉〕］｝]"
STOP = re.compile(
    rf"[.!?…‥‼⁇⁈⁉؟۔।॥։።᠃᠉།\u037e]+{_CLOSING}*(?=\s)"
    rf"|[。！？｡။។៕]+(?!{_CLOSING}|[。！？｡။។៕])|[。！？｡]+{_CLOSING}+(?=\s)"
)
"""Where a sentence may end. Full stops of Chinese, Japanese, Burmese and Khmer need no whitespace after them, except
behind a closing quote, where the sentence usually continues: 「はい。」と言った。"""
LINE = re.compile(r"[\n\r\v\f\x85\u2028\u2029]")
OPENING = re.compile(r"[\s\"'“”„‘’‚«»‹›(\[{¿¡「『（【《*_–—-]*")
LAST_WORD = re.compile(r"[^\s\"'“”„‘’‚«»‹›()\[\]{}¿¡/]*\Z")
NOT_SENTENCE_END = re.compile(r"\w|\d\d|[IVXLC]+|.*[^\W\d]\..*")
"""Before a full stop: an initial, a short or Roman ordinal, or a word with inner stops (U.S., e.g.)."""
CLAUSE = re.compile(r"[,;:،؛)\]][\"'”’»]*\s|\s[—–-]\s|[—、，；：]")
WHITESPACE = re.compile(r"\s")

_ABBREVIATED = """
mr mrs ms messrs dr prof rev hon gen col lt sgt capt maj st sr jr vs etc vol fig figs eq eds pp approx dept blvd jan feb
apr jun jul aug sept oct nov dec nr abs bd bzw ca evtl ggf inkl exkl usw vgl zzgl str tel hr fr frl ing dipl mio mrd tsd
sog geb gest jh jhd mme mlle mgr env cf chap tél sig sigg sra srta dña ud uds vd vds pág núm avda dott ecc cfr pag
dhr mevr bijv enz blz dvs osv kl ang np tzw tj godz čl tzv např apod atd
гг ул им стр рис табл тыс млн млрд руб коп проф акад др пр см напр
"""
ABBREVIATIONS = frozenset(_ABBREVIATED.split())
"""Words whose full stop does not end a sentence."""
BEFORE_NUMBERS = frozenset({"no", "nos", "art", "est", "mar", "sep", "av", "ed"})
"""Words whose full stop does not end a sentence before a number."""


def split_sentences(
    text: str,
    *,
    limit: int | None = None,
    length: Callable[[str], int] = len,
    one_per_segment: bool = True,
    protected: Spans = (),
) -> list[TextSegment]:
    """Split a text into sentences with the whitespace between them, none longer than `limit` as measured by `length`.

    A line break is always a boundary. Unless `one_per_segment`, a line that fits is one segment, and of a longer line
    as many sentences share a segment as fit. A sentence that is too long is split at a clause mark, else at whitespace,
    else anywhere; but never inside a `protected` span, which alone may exceed the limit.
    """

    def fits(start: int, end: int) -> bool:
        return limit is None or length(text[start:end].strip()) <= limit

    line_ends = (match.end() for match in LINE.finditer(text))
    ends: list[int] = []
    for start, end in pairwise([0, *(line for line in line_ends if _span_around(line, protected) is None), len(text)]):
        if not one_per_segment and fits(start, end):
            ends.append(end)
            continue
        boundaries = [start, *_sentence_ends(text, start, end, protected), end]
        parts = [part for pair in pairwise(boundaries) for part in _split_long(text, *pair, fits, protected)]
        ends += parts if one_per_segment else _merge(start, parts, fits)
    return _segments(text, ends)


def join_segments(segments: Sequence[TextSegment], translations: Sequence[str]) -> str:
    """Join translated segments with the whitespace between them.

    Chinese and Japanese have no space between sentences, most others do: where source and target differ, one is added
    or left out.
    """
    result = ""
    for (source, whitespace), text in zip(segments, translations, strict=True):
        if result and text and source and not result[-1].isspace() and not _is_wide(result[-1] + text[0]):
            result += " "
        result += text + ("" if whitespace == " " and text and _is_wide(text[-1]) else whitespace)
    return result


def _sentence_ends(text: str, start: int, end: int, protected: Spans) -> list[int]:
    ends = (stop.end() for stop in STOP.finditer(text, start, end) if _ends_sentence(text, stop, end))
    return [position for position in ends if position < end and _span_around(position, protected) is None]


def _ends_sentence(text: str, stop: re.Match[str], end: int) -> bool:
    following = OPENING.match(text, stop.end(), end).end()  # type: ignore[union-attr]  # matches the empty string
    if following < end and text[following].islower():
        return False
    if text[stop.start()] != "." or text.startswith("..", stop.start()):
        return True
    word = LAST_WORD.search(text, max(0, stop.start() - 40), stop.start()).group()  # type: ignore[union-attr]
    if word.lower() in BEFORE_NUMBERS and text[following : following + 1].isdigit():
        return False
    return word.lower() not in ABBREVIATIONS and not NOT_SENTENCE_END.fullmatch(word)


def _split_long(text: str, start: int, end: int, fits: Callable[[int, int], bool], protected: Spans) -> Iterator[int]:
    """Yield the ends of parts that fit, halving recursively."""
    middle = None if fits(start, end) else _split_point(text, start, end, protected)
    if middle is None:
        yield end
    else:
        yield from _split_long(text, start, middle, fits, protected)
        yield from _split_long(text, middle, end, fits, protected)


def _split_point(text: str, start: int, end: int, protected: Spans) -> int | None:
    """Return the best position near the middle to split at, so that both parts have a fair size."""
    middle, quarter = (start + end) // 2, (end - start) // 4
    for mark in (CLAUSE, WHITESPACE):
        ends = (match.end() for match in mark.finditer(text, start + quarter, end - quarter))
        candidates = [split for split in ends if start < split < end and _span_around(split, protected) is None]
        if candidates:
            return min(candidates, key=lambda candidate: abs(candidate - middle))
    while middle < end and unicodedata.category(text[middle])[0] == "M":  # keep an accent with its letter
        middle += 1
    edges = _span_around(middle, protected) or (middle, (start + end) // 2)
    candidates = [edge for edge in edges if start < edge < end]
    return min(candidates, key=lambda candidate: abs(candidate - middle), default=None)


def _merge(start: int, ends: Sequence[int], fits: Callable[[int, int], bool]) -> Iterator[int]:
    """Yield the ends of segments that hold as many neighboring parts as fit."""
    for end, next_end in pairwise(ends):
        if not fits(start, next_end):
            yield end
            start = end
    yield ends[-1]


def _segments(text: str, ends: Sequence[int]) -> list[TextSegment]:
    segments: list[TextSegment] = []
    for start, end in pairwise([0, *ends]):
        part = text[start:end]
        words = part.strip()
        before, after = (part, "") if not words else (part[: part.index(words[0])], part[len(part.rstrip()) :])
        if before:
            last = segments.pop() if segments else TextSegment("", "")
            segments.append(TextSegment(last.text, last.whitespace + before))
        if words:
            segments.append(TextSegment(words, after))
    return segments


def _span_around(position: int, protected: Spans) -> tuple[int, int] | None:
    """Return the protected span that a split at this position would tear apart."""
    index = bisect_left(protected, (position, 0)) - 1
    return protected[index] if index >= 0 and protected[index][1] > position else None


def _is_wide(characters: str) -> bool:
    """Whether any of the characters is East Asian wide."""
    return any(unicodedata.east_asian_width(character) in "WF" for character in characters)
