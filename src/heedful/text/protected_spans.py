"""Find the spans that a translation must copy unchanged: placeholders, tags, URLs and e-mail addresses.

The patterns follow what programs put into text: `{name}`, `{{mustache}}`, `${VAR}`, `%(name)s`, ICU messages, HTML and
XML tags with attributes, character entities, URLs and e-mail addresses. Every repetition is bounded, so that matching
takes time linear in the length of any input.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

SpanKind = Literal["placeholder", "tag"]


class ProtectedSpan(NamedTuple):
    """A span of text that must be copied unchanged."""

    start: int
    end: int
    text: str
    kind: SpanKind


_VALUE = r""""[^"<]{0,2000}+"|'[^'<]{0,2000}+'|[^\s"'=<>`]{1,2000}+"""
_ATTRIBUTE = rf"""\s{{1,20}}+[^\s"'<>/=]{{1,100}}+(?:\s{{0,20}}+=\s{{0,20}}+(?:{_VALUE}))?"""
_TAG = rf"<!--(?:(?!<!--)(?s:.)){{0,2000}}?-->|</?[A-Za-z][\w:.-]{{0,63}}+(?:{_ATTRIBUTE}){{0,64}}\s{{0,20}}/?>"
_IN_ADDRESS = r"[A-Za-z0-9\-._~:/?#\[\]@!$&'*+,;=%]|\([A-Za-z0-9\-._~:/?#@!$&*+,;=%]{0,200}\)|\{[\w.]{0,64}\}"
_WEB = rf"(?:(?i:https?|ftps?|sftp|ssh|git|file|wss?|s3)://|(?i:mailto|tel):(?=[\w+])|(?i:www)\.)(?:{_IN_ADDRESS}){{1,2000}}(?<![.,;:!?'\[\]*])"
_MAIL = r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}+@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
_MESSAGE = (
    r"\{\s{0,9}[\w.]{1,64}\s{0,9},(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]{0,200}\}){0,500}\}){0,1000}\}){0,2000}\}"
)
_BRACES = r"\{{2,3}[^{}\n]{0,200}\}{2,3}|[$#%]\{[^{}\n]{0,200}\}|\{[\w.:!@$#\[\]+*/%^<>=|?-]{0,64}\}"
_PERCENT = (
    r"%%|%[A-Z][A-Z0-9_]{1,63}%|(?<!\d)%(?:\(\w{1,64}\))?(?:\d{1,2}\$)?[-+#0']{0,5}(?:\d{1,4}|\*)?(?:\.(?:\d{1,4}|\*))?"
    r"(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGaAcsSp@]"
)
_OTHERS = r"\$[A-Za-z_][A-Za-z0-9_]{0,63}|&(?:[A-Za-z][A-Za-z0-9]{1,31}|\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6});"

PATTERN = re.compile(rf"(?P<tag>{_TAG})|{_WEB}|{_MAIL}|{_MESSAGE}|{_BRACES}|{_PERCENT}|{_OTHERS}")


HINT = re.compile(r"[<{%$&@:]|[Ww]{3}")
"""Every protected span contains one of these: a quick pre-check, since most texts have none."""


def find_protected_spans(text: str) -> list[ProtectedSpan]:
    """Return the protected spans of a text, from left to right."""
    if not HINT.search(text):
        return []
    return [
        ProtectedSpan(match.start(), match.end(), match.group(), "tag" if match["tag"] else "placeholder")
        for match in PATTERN.finditer(text)
    ]
