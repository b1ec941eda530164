"""The script of a text, by Unicode ranges: a fast sign that a column holds another language's text.

The ranges are listed here: Python's `unicodedata` has no script property, and a table look-up over chunks is fast.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Unicode blocks, by their first and last letters. Digits, marks and punctuation belong to no script.
# Japanese mixes Han and kana in one sentence, so the two are one script here.
RANGES = {
    "Latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x24F), (0x1E00, 0x1EFF)],
    "Greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "Cyrillic": [(0x400, 0x52F)],
    "Armenian": [(0x531, 0x587)],
    "Hebrew": [(0x5D0, 0x5EA)],
    "Arabic": [(0x620, 0x64A), (0x66E, 0x6D3), (0x6FA, 0x77F)],
    "Devanagari": [(0x900, 0x965)],
    "Bengali": [(0x980, 0x9E5)],
    "Gurmukhi": [(0xA00, 0xA65)],
    "Gujarati": [(0xA80, 0xAE5)],
    "Tamil": [(0xB80, 0xBE5)],
    "Telugu": [(0xC00, 0xC65)],
    "Kannada": [(0xC80, 0xCE5)],
    "Malayalam": [(0xD00, 0xD65)],
    "Sinhala": [(0xD80, 0xDE5)],
    "Thai": [(0xE01, 0xE4E)],
    "Lao": [(0xE80, 0xECF)],
    "Tibetan": [(0xF00, 0xF1F), (0xF40, 0xFFF)],
    "Myanmar": [(0x1000, 0x103F)],
    "Georgian": [(0x10A0, 0x10FF)],
    "Hangul": [(0x1100, 0x11FF), (0x3131, 0x318E), (0xAC00, 0xD7A3)],
    "Ethiopic": [(0x1200, 0x135A)],
    "Khmer": [(0x1780, 0x17D3)],
    "Han or kana": [(0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)],
}

SCRIPTS = ("none", *RANGES)
UNSPACED_SCRIPTS = ("Han or kana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
"""Scripts that put no spaces between words."""


@cache
def letter_of(*scripts: str) -> re.Pattern[str]:
    """A pattern of any one letter of these scripts."""
    ranges = (f"{chr(low)}-{chr(high)}" for script in scripts for low, high in RANGES[script])
    return re.compile(f"[{''.join(ranges)}]")


def unspaced_letters(text: str) -> int:
    """The number of letters of scripts that put no spaces between words."""
    return 0 if text.isascii() else len(letter_of(*UNSPACED_SCRIPTS).findall(text))


def scripts_of(texts: list[str], lengths: NDArray[Any]) -> NDArray[np.uint8]:
    """The script of most letters of each text, as an index into SCRIPTS; 0 for a text without letters."""
    joined = "".join(texts)
    if joined.isascii():
        script = _table()[np.frombuffer(joined.encode("ascii"), np.uint8)]
    else:
        script = _table()[np.frombuffer(joined.encode("utf-32-le"), np.uint32)]
    row, width = np.repeat(np.arange(len(texts)), lengths), len(SCRIPTS)
    counts = np.bincount(row * width + script, minlength=len(texts) * width).reshape(len(texts), width)
    counts[:, 0] = 0
    return np.asarray(counts.argmax(axis=1), np.uint8)


def script_of(texts: list[str]) -> str:
    """The script that most texts are in; those without letters do not count."""
    scripts = scripts_of(texts, np.array([len(text) for text in texts], np.int64))
    return SCRIPTS[1 + int(np.bincount(scripts, minlength=len(SCRIPTS))[1:].argmax())]


@cache
def _table() -> NDArray[np.uint8]:
    table = np.zeros(0x110000, np.uint8)
    for name, ranges in RANGES.items():
        for first, last in ranges:
            table[first : last + 1] = SCRIPTS.index(name)
    return table
