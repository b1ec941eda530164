"""A text put together from what a model wrote and what must stand in it exactly.

What is to be kept must be found again in the result, each as often as it was put in and nothing else like it, whatever
the model wrote around it: a stray "$" before "{name}" would make another placeholder of it. So the text is read again,
and what the model wrote gives way, first by a blank, then sign by sign.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heedful.text.protected_spans import PATTERN, find_protected_spans

SIGNS = re.compile(r"[<>{}%$#&@:/]|(?i:www\.)")
"""What a placeholder, tag or address can begin with, and more."""


class TextPart(NamedTuple):
    """A stretch of a text: exact, or free to change."""

    text: str
    exact: bool


def assemble(parts: Sequence[TextPart]) -> str:
    """The parts as one text in which the exact ones, and nothing but these, are found to be kept."""
    parts = [part if part.exact else TextPart(PATTERN.sub("", part.text), False) for part in parts]
    wanted = Counter(found.text for part in parts if part.exact for found in find_protected_spans(part.text))
    harmless = [part if part.exact else TextPart(SIGNS.sub("", part.text), False) for part in parts]
    for text in ("".join(part.text for part in parts), _apart(parts), _apart(harmless)):
        if Counter(found.text for found in find_protected_spans(text)) == wanted:
            return text
    return " ".join(part.text for part in parts if part.exact)


def _apart(parts: Sequence[TextPart]) -> str:
    return " ".join(text for text in (part.text.strip() for part in parts) if text)
