"""What a source asks of its translation, and what of the source the model is to read."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.occlusion import TextWords
from heedful.generation.terminology.tag_placement import Tag
from heedful.text.markup_tags import tag_role
from heedful.text.protected_spans import find_protected_spans
from heedful.text.word_boundaries import find_words

STAND_IN = "X"
"""Read in place of a placeholder. Hardly any text has placeholders in it, and every language has an X."""


class Requirement(NamedTuple):
    """A stretch of the source, and what must stand for it in the target."""

    start: int
    end: int
    text: str
    kind: Literal["term", "placeholder", "tag"]


def find_requirements(text: str, glossary: Glossary | None = None, *, keep: bool = True) -> list[Requirement]:
    """What a translation of this text must hold, from left to right. No term is sought inside what is kept."""
    kept = [Requirement(*found) for found in find_protected_spans(text)] if keep else []
    if glossary is None:
        return kept
    covered = {place for found in kept for place in range(found.start, found.end)}
    terms = (Requirement(*term, "term") for term in glossary.find(text))
    return sorted([*kept, *(term for term in terms if covered.isdisjoint(range(term.start, term.end)))])


@dataclass(frozen=True)
class ModelInput:
    """What the model reads of a source: no tags, and words it may know instead of placeholders."""

    text: str
    required: Sequence[Requirement]
    """Terms and placeholders, with their places in this text."""
    tags: Sequence[Tag]
    """Tags, and blanks written as &nbsp;, with their places in this text."""

    @classmethod
    def of(cls, source: str, required: Sequence[Requirement]) -> ModelInput:
        text, reached = "", 0
        wanted: list[Requirement] = []
        tags: list[Tag] = []
        for found in required:
            text = _joined(text, source[reached : found.start])
            reached = found.end
            shown = source[found.start : found.end] if found.kind == "term" else stand_in(found)
            if not shown.strip():
                tags.append(Tag(len(text), found.text))
                apart = tag_role(found.text) == "alone" and text[-1:].strip() and source[reached : reached + 1].strip()
                text += " " if apart else ""  # "one<br>two" is two words
            else:
                wanted.append(Requirement(len(text), len(text) + len(shown), found.text, found.kind))
                text += shown
        return cls(_joined(text, source[reached:]), wanted, tags)

    @property
    def in_words(self) -> TextWords:
        """Its words, each of the wanted being one."""
        return TextWords(self.text, find_words(self.text, [(found.start, found.end) for found in self.required]))


def stand_in(found: Requirement) -> str:
    """What the model reads instead: nothing for a tag, the character that an entity stands for, or an X."""
    if found.kind == "tag":
        return ""
    plain = "%" if found.text == "%%" else html.unescape(found.text) if found.text[0] == "&" else STAND_IN
    return plain if len(plain) == 1 else STAND_IN


def _joined(before: str, after: str) -> str:
    """Blanks on both sides of a tag that is gone become one."""
    return before + (after[1:] if before[-1:].isspace() and after[:1].isspace() else after)
