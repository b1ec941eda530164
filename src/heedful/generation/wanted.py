"""What a source asks of its translation, and what of the source the model is to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from heedful.generation.glossary import Glossary
from heedful.generation.markup import Tag
from heedful.generation.occlusion import InWords
from heedful.text.borders import words
from heedful.text.keep import find_kept
from heedful.text.tags import role

SHOWN = 60
"""Characters of a placeholder that the model gets to see: the rest of a long address could only confuse it."""


class Required(NamedTuple):
    """A stretch of the source, and what must stand for it in the target."""

    start: int
    end: int
    text: str
    kind: Literal["term", "placeholder", "tag"]


def find(text: str, glossary: Glossary | None = None, *, keep: bool = True) -> list[Required]:
    """What a translation of this text must hold, from left to right. No term is sought inside what is kept."""
    kept = [Required(*found) for found in find_kept(text)] if keep else []
    if glossary is None:
        return kept
    covered = {place for found in kept for place in range(found.start, found.end)}
    terms = (Required(*term, "term") for term in glossary.find(text))
    return sorted([*kept, *(term for term in terms if covered.isdisjoint(range(term.start, term.end)))])


@dataclass(frozen=True)
class View:
    """What the model reads of a source: no tags, and of a placeholder no more than it takes to know it by."""

    text: str
    wanted: Sequence[Required]
    """Terms and placeholders, with their places in this text."""
    originals: Sequence[str]
    """What each of them stands for at full length."""
    tags: Sequence[Tag]

    @classmethod
    def of(cls, source: str, required: Sequence[Required]) -> View:
        text, reached = "", 0
        wanted: list[Required] = []
        tags: list[Tag] = []
        for found in required:
            text = _joined(text, source[reached : found.start])
            reached = found.end
            if found.kind == "tag":
                tags.append(Tag(len(text), found.text))
                blank = role(found.text) == "alone" and text[-1:].strip() and source[found.end : found.end + 1].strip()
                text += " " if blank else ""  # "one<br>two" is two words
                continue
            shown = source[found.start : found.end][:SHOWN]
            target = found.text if found.kind == "term" else shown
            wanted.append(Required(len(text), len(text) + len(shown), target, found.kind))
            text += shown
        originals = [found.text for found in required if found.kind != "tag"]
        return cls(_joined(text, source[reached:]), wanted, originals, tags)

    @property
    def in_words(self) -> InWords:
        """Its words, each of the wanted being one."""
        return InWords(self.text, words(self.text, [(found.start, found.end) for found in self.wanted]))


def _joined(before: str, after: str) -> str:
    """Blanks on both sides of a tag that is gone become one."""
    return before + (after[1:] if before[-1:].isspace() and after[:1].isspace() else after)
