"""Forms of text that a model would learn to expect and to write: character references, and tokenized text.

Corpora prepared for other toolkits (Moses, fastText) come with `&apos;` for an apostrophe, or with spaces around every
token: `i 'm here .`
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ESCAPED = re.compile(r"&(?:apos|quot|amp|lt|gt|nbsp|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
TOKENIZED = re.compile(r"\s[.,。、，](?:\s|$)|\s['’](?:s|m|re|ve|ll|d|t)\b|\sn['’]t\b|@-@|@@(?:\s|$)")
MIN_TOKENIZED = 0.1
"""Share of the rows with spaces before punctuation from which a corpus counts as tokenized."""


def escaped_rows(texts: Sequence[str]) -> list[bool]:
    """For each text, whether it has character references, such as `&apos;`."""
    return [ESCAPED.search(text) is not None for text in texts]


def tokenized_rows(texts: Sequence[str]) -> list[bool]:
    """For each text, whether it has spaces around tokens, such as `i 'm here .`"""
    return [TOKENIZED.search(text) is not None for text in texts]
