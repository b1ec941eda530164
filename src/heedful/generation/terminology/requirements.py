"""Requirements of a source on its translation, and the source as the model reads it."""

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

SUBSTITUTE = "X"
"""Replaces a placeholder in the model's input: training text rarely has placeholders."""


class RequiredSpan(NamedTuple):
    """A span of the source, and the text that must appear for it in the translation."""

    start: int
    end: int
    text: str
    kind: Literal["term", "placeholder", "tag"]


def find_requirements(text: str, glossary: Glossary | None = None, *, keep: bool = True) -> list[RequiredSpan]:
    """Requirements from left to right: protected spans (`keep`), and glossary terms outside them."""
    protected = [RequiredSpan(*span) for span in find_protected_spans(text)] if keep else []
    if glossary is None:
        return protected
    covered = {index for span in protected for index in range(span.start, span.end)}
    terms = (RequiredSpan(*term, "term") for term in glossary.find(text))
    return sorted([*protected, *(term for term in terms if covered.isdisjoint(range(term.start, term.end)))])


@dataclass(frozen=True)
class ModelInput:
    """A source as the model reads it: without tags, and with a stand-in for each placeholder."""

    text: str
    required: Sequence[RequiredSpan]
    """Terms and placeholders, with their spans in this text."""
    tags: Sequence[Tag]
    """Tags, and spaces written as &nbsp;, with their positions in this text."""

    @classmethod
    def of(cls, source: str, requirements: Sequence[RequiredSpan]) -> ModelInput:
        text, copied_until = "", 0
        required: list[RequiredSpan] = []
        tags: list[Tag] = []
        for span in requirements:
            text = _append(text, source[copied_until : span.start])
            copied_until = span.end
            shown = source[span.start : span.end] if span.kind == "term" else substitute_text(span)
            if not shown.strip():
                tags.append(Tag(len(text), span.text))
                between_words = text[-1:].strip() and source[copied_until : copied_until + 1].strip()
                text += " " if tag_role(span.text) == "alone" and between_words else ""  # "one<br>two" is two words
            else:
                required.append(RequiredSpan(len(text), len(text) + len(shown), span.text, span.kind))
                text += shown
        return cls(_append(text, source[copied_until:]), required, tags)

    @property
    def words(self) -> TextWords:
        """The words of the text; each required span is one."""
        return TextWords(self.text, find_words(self.text, [(span.start, span.end) for span in self.required]))


def substitute_text(requirement: RequiredSpan) -> str:
    """The text the model reads in place of a required span: empty for a tag, the character for an HTML entity, or X."""
    if requirement.kind == "tag":
        return ""
    text = requirement.text
    plain = "%" if text == "%%" else html.unescape(text) if text[0] == "&" else SUBSTITUTE
    return plain if len(plain) == 1 else SUBSTITUTE


def _append(before: str, after: str) -> str:
    """Join, with one space where a removed tag had spaces on both sides."""
    return before + (after[1:] if before[-1:].isspace() and after[:1].isspace() else after)
