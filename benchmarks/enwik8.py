"""enwik8, the first 100 MB of a Wikipedia dump, as plain text.

    python benchmarks/enwik8.py prose enwik8.gz > articles.txt     paragraphs, a blank line after each article
    python benchmarks/enwik8.py words enwik8.gz > words.txt        an article a line: a to z, digits spelt

Of the dump only the articles' text is kept, and of that only what a reader would see: no tables, templates, references,
comments, tags or addresses; of a link and of a picture's caption the words. Redirects are left out. `words` goes on
as Matt Mahoney describes his text8 (mattmahoney.net/dc/textdata.html): lower case, "7" is "seven", and whatever is not
a letter of a to z is a space. Memory stays flat: one article at a time.
"""

from __future__ import annotations

import gzip
import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

OPENING, CLOSING = "<text ", "</text>"
LONGEST = 4_000_000
"""Characters of one article, at most: of a damaged dump no more is held."""

GONE = [
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
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPELT = str.maketrans({str(digit): f" {word} " for digit, word in enumerate(NUMBERS)})
NOT_A_TO_Z = re.compile(r"[^a-z]+")


def articles(file: Path) -> Iterator[str]:
    """The readable text of each article, a paragraph a line."""
    for markup in texts(file):
        if not markup.lstrip().lower().startswith("#redirect") and (text := plain(markup)):
            yield text


def words(file: Path) -> Iterator[str]:
    """Each article as one line of words."""
    return (line for text in articles(file) if (line := spelt(text)))


def texts(file: Path) -> Iterator[str]:
    """What stands between <text …> and </text>, as it is written there."""
    opener = gzip.open if file.suffix == ".gz" else open
    held: list[str] | None = None
    with opener(file, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if held is None:
                _, found, after = line.partition(OPENING)
                if not found:
                    continue
                held, line = [], after.partition(">")[2]
            before, closes, _ = line.partition(CLOSING)
            held.append(before)
            if closes:
                yield html.unescape("".join(held)[:LONGEST])
                held = None
    if held:
        yield html.unescape("".join(held)[:LONGEST])  # the dump was cut here


def plain(markup: str) -> str:
    """Wiki markup without the markup."""
    text = html.unescape(markup)
    for pattern in GONE:
        text = pattern.sub(" ", text)
    for _ in range(6):  # templates stand in templates
        text, found = INNERMOST_TEMPLATE.subn(" ", text)
        if not found:
            break
    text = TABLE.sub(" ", text)
    for _ in range(3):  # links stand in captions
        text = PICTURE.sub(r"\1", LINK_IN_PICTURE.sub(r"\1", text))
    text = CATEGORY.sub(r"\1", text)
    text = OTHER_LANGUAGE.sub("", text)
    text = LINK.sub(r"\1", text)
    text = ADDRESS.sub(" ", text)
    text = MARKS.sub("", text)
    paragraphs = (BLANKS.sub(" ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in paragraphs if line)


def spelt(text: str) -> str:
    """Lower-case words of a to z alone, digits as words."""
    return NOT_A_TO_Z.sub(" ", text.lower().translate(SPELT)).strip()


def main() -> None:
    how, file = sys.argv[1], Path(sys.argv[2])
    made, end = {"prose": (articles, "\n\n"), "words": (words, "\n")}[how]
    for text in made(file):
        sys.stdout.write(text + end)


if __name__ == "__main__":
    main()
