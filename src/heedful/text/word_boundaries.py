"""Find word boundaries in any script, without a dictionary.

A word is a run of letters, digits and combining marks, or one symbol. Scripts without spaces between words are split
letter by letter: only a dictionary could do better.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"  # kana, Han
)
_MARKS = (
    "\u0300-\u036f\u200c\u200d\u3099\u309a\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u17b4-\u17d3"
)
_SIGNS = "\\s!-/:-@\\[-`{-~\xa1-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb\xbf\u2010-\u2bff\u3000-\u3004\u3008-\u303f\uff01-\uff0f"
_LETTER = f"[^{_SIGNS}{_UNSPACED}]"
WORD = re.compile(f"{_LETTER}+|[{_UNSPACED}][{_MARKS}]*|\\S[{_MARKS}]*")
LETTERS = re.compile(f"{_LETTER}+")


def find_words(text: str, protected: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Return the (start, end) of each word or symbol; each span of `protected` is one word."""
    spans: list[tuple[int, int]] = []
    start = 0
    for first, last in [*protected, (len(text), len(text))]:
        spans += [match.span() for match in WORD.finditer(text, start, first)]
        spans += [(first, last)] if last > first else []
        start = last
    return spans


def inside_word(text: str, position: int) -> bool:
    """Whether the characters around this position belong to one word."""
    return position > 0 and LETTERS.fullmatch(text, position - 1, position + 1) is not None and position < len(text)
