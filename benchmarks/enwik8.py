"""enwik8, the first 100 MB of a Wikipedia dump, as plain text.

    python benchmarks/enwik8.py prose enwik8.gz > articles.txt     paragraphs, a blank line after each article
    python benchmarks/enwik8.py words enwik8.gz > words.txt        one article per line: a to z, digits spelled out

Keeps the visible text of articles: no redirects, tables, templates, references, comments, tags or addresses; the text
of links and image captions stays. `words` continues as in text8 (mattmahoney.net/dc/textdata.html): lower case, "7" is
"seven", every other character is a space. One article is held in memory at a time.
"""

from __future__ import annotations

import gzip
import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

OPENING, CLOSING = "<text ", "</text>"
MAX_CHARACTERS = 4_000_000
"""Most characters of one article, which bounds memory on a damaged dump."""

REMOVED = [
    re.compile(r"<!--.*?-->", re.S),
    re.compile(r"<ref[^>/]*/>", re.I),
    re.compile(r"<(ref|math|gallery|timeline|nowiki|pre|code)\b[^>]*>.*?</\1>", re.S | re.I),
    re.compile(r"<[^<>]{1,300}>"),
]
INNERMOST_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
TABLE = re.compile(r"^\{\|.*?^\|\}", re.S | re.M)
PICTURE = re.compile(r"\[\[(?:image|file):(?:[^\[\]|]*\|)*([^\[\]|]*)\]\]", re.I)
CATEGORY = re.compile(r"\[\[category:([^\]|]*)[^\]]*\]\]", re.I)
OTHER_LANGUAGE = re.compile(r"\[\[[a-z\-]{2,12}:[^\]]*\]\]")
LINK_IN_PICTURE = re.compile(
    r"(?<=[^\[])\[\[(?!image:|file:|category:)(?:[^\[\]|:]*\|)?([^\[\]|:]*)\]\](?=[^\[\]]*\]\])", re.I
)
LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
ADDRESS = re.compile(r"\[?(?:https?|ftp)://[^\s\]]*\]?")
MARKS = re.compile(r"'{2,}|={2,}|^[*#:;]+|\[|\]|__[A-Z]+__", re.M)
BLANKS = re.compile(r"[ \t\xa0]+")
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPELLED_DIGITS = str.maketrans({str(digit): f" {word} " for digit, word in enumerate(DIGIT_NAMES)})
NOT_A_TO_Z = re.compile(r"[^a-z]+")


def articles(file: Path) -> Iterator[str]:
    """The visible text of each article, one paragraph per line."""
    for markup in article_markup(file):
        if not markup.lstrip().lower().startswith("#redirect") and (text := strip_markup(markup)):
            yield text


def words(file: Path) -> Iterator[str]:
    """Each article as one line of words."""
    return (line for text in articles(file) if (line := normalize_words(text)))


def article_markup(file: Path) -> Iterator[str]:
    """The contents of each <text …> element."""
    opener = gzip.open if file.suffix == ".gz" else open
    parts: list[str] | None = None
    with opener(file, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if parts is None:
                _, opening, after = line.partition(OPENING)
                if not opening:
                    continue
                parts, line = [], after.partition(">")[2]
            before, closing, _ = line.partition(CLOSING)
            parts.append(before)
            if closing:
                yield html.unescape("".join(parts)[:MAX_CHARACTERS])
                parts = None
    if parts:
        yield html.unescape("".join(parts)[:MAX_CHARACTERS])  # the dump ends inside an article


def strip_markup(markup: str) -> str:
    """The visible text of wiki markup."""
    text = html.unescape(markup)
    for pattern in REMOVED:
        text = pattern.sub(" ", text)
    for _ in range(6):  # templates are nested
        text, count = INNERMOST_TEMPLATE.subn(" ", text)
        if not count:
            break
    text = TABLE.sub(" ", text)
    for _ in range(3):  # captions contain links
        text = PICTURE.sub(r"\1", LINK_IN_PICTURE.sub(r"\1", text))
    text = CATEGORY.sub(r"\1", text)
    text = OTHER_LANGUAGE.sub("", text)
    text = LINK.sub(r"\1", text)
    text = ADDRESS.sub(" ", text)
    text = MARKS.sub("", text)
    paragraphs = (BLANKS.sub(" ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in paragraphs if line)


def normalize_words(text: str) -> str:
    """Lower-case words of a to z only, digits as words."""
    return NOT_A_TO_Z.sub(" ", text.lower().translate(SPELLED_DIGITS)).strip()


def main() -> None:
    output, file = sys.argv[1], Path(sys.argv[2])
    extract, end = {"prose": (articles, "\n\n"), "words": (words, "\n")}[output]
    for text in extract(file):
        sys.stdout.write(text + end)


if __name__ == "__main__":
    main()
