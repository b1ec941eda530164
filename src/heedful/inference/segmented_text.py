"""A text in the segments that a translator reads at once, with candidate translations and word alignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from heedful.generation.terminology.required_terms import TranslationCandidate
from heedful.generation.terminology.requirements import RequiredSpan
from heedful.text.sentence_splitter import TextSegment, join_segments
from heedful.text.special_tokens import UNKNOWN


@dataclass
class Segment:
    """A part of a text that the model reads at once, and its candidate translations."""

    text: str
    tokens: list[int]
    is_first: bool
    required: Sequence[RequiredSpan]
    candidates: Sequence[TranslationCandidate] = ()
    """Best first."""
    backend: str = ""

    @property
    def best(self) -> TranslationCandidate:
        return self.candidates[0]


@dataclass(frozen=True)
class SegmentedText:
    """A text with its segments; those that are not blank are translated."""

    source: str
    layout: Sequence[TextSegment]
    segments: list[Segment] = field(default_factory=list)

    @property
    def token_count(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)

    @property
    def unknown_count(self) -> int:
        return sum(segment.tokens.count(UNKNOWN) for segment in self.segments)

    @property
    def translation(self) -> str:
        best = (segment.best.text for segment in self.segments)
        return join_segments(self.layout, [next(best) if segment.text else "" for segment in self.layout])


class SegmentAlignment(NamedTuple):
    """Word counts of a source and a target segment, and the aligned pairs of words."""

    source: int
    target: int
    links: tuple[tuple[int, int], ...]


def join_alignments(segments: Sequence[SegmentAlignment]) -> tuple[tuple[int, int], ...]:
    """Word alignments of consecutive segments, numbered over the whole text."""
    joined: list[tuple[int, int]] = []
    sources = targets = 0
    for segment in segments:
        joined += [(sources + source, targets + target) for source, target in segment.links]
        sources, targets = sources + segment.source, targets + segment.target
    return tuple(joined)
