"""Assembly of a translation from generated text and parts that must appear exactly.

Every placeholder, tag and address put in must be recognized in the result as often as it was put in, and nothing else
like it, whatever text surrounds it: a stray "$" before "{name}" would make another placeholder of it. So the result is
scanned again, and the generated text gives way: first by a space, then by dropping characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heedful.text.protected_spans import PATTERN, find_protected_spans

MARKUP_CHARACTERS = re.compile(r"[<>{}%$#&@:/]|(?i:www\.)")
"""What a placeholder, tag or address can begin with, and more."""


class TextPart(NamedTuple):
    """A part of a text: exact, or generated and free to change."""

    text: str
    exact: bool


def assemble(parts: Sequence[TextPart]) -> str:
    """Join the parts to a text in which exactly the protected spans of the exact parts are recognized."""
    parts = [part if part.exact else TextPart(PATTERN.sub("", part.text), False) for part in parts]
    expected = Counter(span.text for part in parts if part.exact for span in find_protected_spans(part.text))
    plain = [part if part.exact else TextPart(MARKUP_CHARACTERS.sub("", part.text), False) for part in parts]
    for text in ("".join(part.text for part in parts), _join_with_spaces(parts), _join_with_spaces(plain)):
        if Counter(span.text for span in find_protected_spans(text)) == expected:
            return text
    return " ".join(part.text for part in parts if part.exact)


def _join_with_spaces(parts: Sequence[TextPart]) -> str:
    return " ".join(text for text in (part.text.strip() for part in parts) if text)
