"""Assembly of a translation from generated text and parts that must appear exactly.

The result must contain exactly the placeholders, tags and addresses that were inserted. Adjacent generated text can
form another: "$" before "{name}" gives "${name}". So the result is scanned: if it differs, spaces are added around the
parts, and if that is not enough, markup characters are removed from the generated ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heedful.text.protected_spans import PATTERN, find_protected_spans

MARKUP_CHARACTERS = re.compile(r"[<>{}%$#&@:/]|(?i:www\.)")
"""Characters that a placeholder, tag or address can begin with, and others."""


class TextPart(NamedTuple):
    """A part of a text: exact, or generated and changeable."""

    text: str
    exact: bool


def assemble(parts: Sequence[TextPart]) -> str:
    """Join the parts to a text that contains the protected spans of the exact parts and no others."""
    parts = [part if part.exact else TextPart(PATTERN.sub("", part.text), False) for part in parts]
    expected = Counter(span.text for part in parts if part.exact for span in find_protected_spans(part.text))
    plain = [part if part.exact else TextPart(MARKUP_CHARACTERS.sub("", part.text), False) for part in parts]
    for text in ("".join(part.text for part in parts), _join_with_spaces(parts), _join_with_spaces(plain)):
        if Counter(span.text for span in find_protected_spans(text)) == expected:
            return text
    return " ".join(part.text for part in parts if part.exact)


def _join_with_spaces(parts: Sequence[TextPart]) -> str:
    return " ".join(text for text in (part.text.strip() for part in parts) if text)
