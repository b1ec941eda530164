"""Words, which people count in, and tokens, which models count in: which of the one make up which of the other."""

from __future__ import annotations

import re
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Literal

from heedful.text.tokenizer import TokenSpan, Tokenizer

Unit = Literal["words", "characters"]
"""Words stand between blanks. Text written without blanks is counted in characters (code points) instead."""
PATTERNS = {"words": re.compile(r"\S+"), "characters": re.compile(r"\S")}


@dataclass(frozen=True)
class TokenizedWords:
    """A text cut into words, and for each of its tokens the words it has a part in.

    A blank goes with what follows it. Several tokens make a word; but a token can be several characters.
    """

    words: tuple[str, ...]
    tokens: tuple[int, ...]
    word_ranges: tuple[range, ...]


def tokenize_words(text: str, tokenizer: Tokenizer, unit: Unit = "words") -> TokenizedWords:
    """A text that was given: its tokens are those the model reads."""
    return _cut(text, tokenizer.spans(text), unit)


def words_from_tokens(tokens: Sequence[int], tokenizer: Tokenizer, unit: Unit = "words") -> TokenizedWords:
    """A text that a model wrote, in its own tokens: `encode` might spell the same words in others."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    text, spans = "", []
    for token, spelling in zip(tokens, _spellings(tokens, tokenizer), strict=True):
        start = len(text)
        text += decoder.decode(spelling)
        begun = bool(decoder.getstate()[0])  # half a character has a part in the whole one
        spans.append(TokenSpan(token, start, len(text) + begun))
    return _cut(text + decoder.decode(b"", final=True), spans, unit)


def _spellings(tokens: Sequence[int], tokenizer: Tokenizer) -> list[bytes]:
    return [*tokenizer.token_bytes(tokens[:1], at_start=True), *tokenizer.token_bytes(tokens[1:])]


def split_words(text: str, unit: Unit = "words") -> list[str]:
    """The words alone."""
    return PATTERNS[unit].findall(text)


def _cut(text: str, spans: Sequence[TokenSpan], unit: Unit) -> TokenizedWords:
    found = [match.span() for match in PATTERNS[unit].finditer(text)]
    ends = [end for _, end in found]
    last = len(found) - 1

    def word_at(character: int) -> int:
        return min(bisect_right(ends, character), last)

    places = tuple(range(word_at(start), word_at(max(start, end - 1)) + 1) for _, start, end in spans)
    words = tuple(text[start:end] for start, end in found)
    return TokenizedWords(words, tuple(span.token for span in spans), places if found else (range(0),) * len(spans))


def word_probabilities(tokenized: TokenizedWords, log_probabilities: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """Each word with its probability, given the source and the words before it: P(word) = Π P(token).

    The probability of END, if it is the last of `log_probabilities`, belongs to no word.
    """
    totals = [0.0] * len(tokenized.words)
    for place, log_probability in zip(tokenized.word_ranges, log_probabilities, strict=False):
        for word in place:
            totals[word] += log_probability
    return tuple((word, exp(min(0.0, total))) for word, total in zip(tokenized.words, totals, strict=True))
