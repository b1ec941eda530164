"""Readable token labels: spaces, control characters and invisible characters are replaced by visible signs."""

from __future__ import annotations

from unicodedata import bidirectional, category

SIGNS = {"\n": "⏎", "\t": "⇥"}
BLANK = "␣"
INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that draw nothing, or that change how the text around them is drawn."""
JOINERS = {"\u200c", "\u200d"}
"""Format characters that belong to the spelling of emoji, Persian and Indic scripts."""


def visible(text: str) -> str:
    """A token as a label: outer blanks are removed, invisible characters replaced by a sign or their code."""
    label = text.strip(" ") or text
    if not label.strip(" "):
        return BLANK * len(label) if label else "∅"
    return "".join(_sign(character, label) for character in label)


def right_to_left(text: str) -> bool:
    """Whether a text is written from right to left, by its first letter."""
    directions = (bidirectional(character) for character in text)
    return next((direction for direction in directions if direction in ("L", "R", "AL")), "L") != "L"


def _sign(character: str, label: str) -> str:
    if character in SIGNS:
        return SIGNS[character]
    if category(character) not in INVISIBLE or (character in JOINERS and len(label) > 1):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
