"""Translate HTML: the text between block elements, with the inline tags inside it; all other markup stays as it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from heedful.server.libretranslate.html_markup import TAG, VOID, Markup, find_markup

ENTITY = r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6});"
SHORT_TAG = re.compile(r"(</[^\s<>]*>|<[^\s<>]* i=\"\d+\"/?>)")
SPECIAL = re.compile(rf"{ENTITY}|[&<>]")
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


@dataclass(frozen=True)
class HtmlPiece:
    """A part of a page: a sentence to translate, or text and markup to copy."""

    text: str
    """As on the page; in a sentence, each tag is replaced by a short one, which the translator keeps."""
    translate: bool
    tags: dict[str, str] = field(default_factory=dict)
    """The tags of the page by the short ones."""

    def restored(self, translation: str) -> str:
        """A translation as HTML, with the page's tags; all else that the model wrote is text."""
        parts = [part for part in SHORT_TAG.split(translation) if part]
        complete = Counter(self._tags_in(parts)) == Counter(self._tags_in(SHORT_TAG.split(self.text)))
        tags = self.tags if complete else dict.fromkeys(self.tags, "")
        return "".join(tags[part] if part in tags else escape_text(part) for part in parts)

    def _tags_in(self, parts: Sequence[str]) -> list[str]:
        return [part for part in parts if part in self.tags]


def split_html(page: str) -> list[HtmlPiece]:
    """Split a page into the parts that are translated and those that are copied."""
    pieces: list[HtmlPiece] = []
    sentence: list[Markup] = []
    start = 0
    for markup in find_markup(page):
        if markup.kind != "block":
            sentence.append(markup)
            continue
        pieces += _sentence(page, start, markup.start, sentence)
        pieces.append(HtmlPiece(page[markup.start : markup.end], False))
        start, sentence = markup.end, []
    return [*pieces, *_sentence(page, start, len(page), sentence)]


def join_html(pieces: Sequence[HtmlPiece], translations: Sequence[str]) -> str:
    """The page with the translations in the place of the sentences."""
    translated = iter(translations)
    return "".join(piece.restored(next(translated)) if piece.translate else piece.text for piece in pieces)


def escape_text(text: str) -> str:
    """A text as HTML; character entities stay."""
    return SPECIAL.sub(lambda match: ESCAPES.get(match[0], match[0]), text)


def _sentence(page: str, start: int, end: int, markups: Sequence[Markup]) -> list[HtmlPiece]:
    """What is between two blocks: a sentence, with the space around it apart; copied if there are no letters in it."""
    text, tags, position, visible = "", dict[str, str](), start, ""
    for markup in markups:
        original = page[markup.start : markup.end]
        short = _short_tag(original, len(tags)) if markup.kind == "inline" else f'<x i="{len(tags)}"/>'
        tags[short] = original
        visible += page[position : markup.start]
        text += page[position : markup.start] + short
        position = markup.end
    visible, text = visible + page[position:end], text + page[position:end]
    if not any(map(str.isalnum, re.sub(ENTITY, "", visible))):
        return [HtmlPiece(page[start:end], False)] if start < end else []
    stripped = text.strip()
    first = text.index(stripped)
    before, after = HtmlPiece(text[:first], False), HtmlPiece(text[first + len(stripped) :], False)
    return [piece for piece in (before, HtmlPiece(stripped, True, tags), after) if piece.text]


def _short_tag(tag: str, number: int) -> str:
    """A tag of the same element without its attributes: a number tells it from the others."""
    match = TAG.match(tag)
    assert match is not None
    name = match[1].lower()
    if tag.startswith("</"):
        return f"</{name}>"
    return f'<{name} i="{number}"{"/" if tag.endswith("/>") or VOID.fullmatch(name) else ""}>'
