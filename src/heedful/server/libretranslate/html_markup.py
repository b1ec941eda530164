"""The markup of a page: tags, comments and elements whose content is not text, from left to right.

Rules are those of browsers where pages need them: a value in quotes may contain `<` and `>`, scripts and styles end at
their closing tag alone, and what is not closed is not markup. Every page is read in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|strike|"
    "strong|sub|sup|time|tt|u|var|wbr"
)
"""Elements inside a sentence; every other one ends it."""
UNTRANSLATED = ("script", "style", "textarea", "pre", "svg", "math", "template", "noscript")
"""Elements whose content is not text of the page."""
RAW = ("script", "style", "textarea")
"""Elements whose content is not markup either."""
VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr")
"""Elements without content or closing tag."""
TAG = re.compile(r"""</?([A-Za-z][^\s/>]*+)(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?)*+>""")
TAG_WITHOUT_VALUES = re.compile(r"</?([A-Za-z][^\s/>]*+)[^>]*+>")
START = re.compile(r"</?[A-Za-z]|<[/!?]")
DECLARATION = re.compile(r"<[/!?][^>]*+>")
"""Doctype, processing instruction, or a closing tag without a name."""
ENCLOSED = (("<!--", "-->"), ("<![CDATA[", "]]>"))
NOT_TRANSLATED = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"[^"]*\bnotranslate\b|'[^']*\bnotranslate\b|notranslate\b)""",
    re.IGNORECASE,
)
MarkupKind = Literal["inline", "atom", "block"]
"""A tag inside a sentence; something whole inside a sentence, such as a comment; what ends a sentence."""


@dataclass(frozen=True)
class Markup:
    """A part of a page that is not text."""

    start: int
    end: int
    kind: MarkupKind


@dataclass(frozen=True)
class _Tag:
    start: int
    end: int
    name: str
    """Of the element, in lower case; empty for a comment, CDATA, doctype or processing instruction."""
    opens: bool
    """Whether content and a closing tag follow."""
    hides: bool
    """Whether the content is not to be translated."""


def find_markup(page: str) -> Iterator[Markup]:
    """All markup of a page; an element that is not to be translated is a single one, with its content."""
    tags = _tags(page)
    for tag in tags:
        inline = INLINE.fullmatch(tag.name)
        if not (tag.opens and tag.hides):
            atom = not tag.name and page.startswith("<!--", tag.start)
            yield Markup(tag.start, tag.end, "inline" if inline else "atom" if atom else "block")
            continue
        end = _end_of_element(tag, tags, page)
        yield Markup(tag.start, end, "atom" if inline else "block")


def _end_of_element(opening: _Tag, tags: Iterator[_Tag], page: str) -> int:
    """Where an element ends; the end of the page if it is not closed."""
    depth = 1
    for tag in tags:
        if tag.name == opening.name:
            closes = page.startswith("</", tag.start)
            depth += tag.opens - closes
            if depth == 0:
                return tag.end
    return len(page)


def _tags(page: str) -> Iterator[_Tag]:
    position, pattern = 0, TAG
    while (start := page.find("<", position)) >= 0:
        tag = _tag_at(page, start, pattern)
        if tag is None and START.match(page, start):  # no end, or only in quotes, which then do not count any more
            tag, pattern = _tag_at(page, start, TAG_WITHOUT_VALUES), TAG_WITHOUT_VALUES
            if tag is None:
                return
        if tag is None:
            position = start + 1
            continue
        yield tag
        position = tag.end
        if tag.opens and tag.name in RAW:
            closing = re.compile(rf"</{tag.name}(?=[\s/>])", re.IGNORECASE).search(page, position)
            position = closing.start() if closing else len(page)


def _tag_at(page: str, start: int, pattern: re.Pattern[str]) -> _Tag | None:
    """The markup that begins here; None for a character of the text."""
    for opening, closing in ENCLOSED:
        if page.startswith(opening, start):
            end = page.find(closing, start + 2)
            return _Tag(start, len(page) if end < 0 else end + len(closing), "", opens=False, hides=False)
    if match := pattern.match(page, start):
        name, text = match[1].lower(), match[0]
        opens = text[1] != "/" and not text.endswith("/>") and not VOID.fullmatch(name)
        hides = opens and (name in UNTRANSLATED or NOT_TRANSLATED.search(text) is not None)
        return _Tag(start, match.end(), name, opens, hides)
    if match := DECLARATION.match(page, start):
        return _Tag(start, match.end(), "", opens=False, hides=False)
    return None
