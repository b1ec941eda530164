"""Map tokens to words: which tokens make up each word of a text."""

from __future__ import annotations

import re
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Literal

from heedful.text.tokenizer import Tokenizer, TokenSpan

Unit = Literal["words", "characters"]
"""Words are separated by whitespace; text written without spaces is counted in characters (code points) instead."""
PATTERNS = {"words": re.compile(r"\S+"), "characters": re.compile(r"\S")}


@dataclass(frozen=True)
class TokenizedWords:
    """The words and tokens of a text, and for each token the range of words it overlaps.

    Whitespace belongs to what follows it. Several tokens can make a word, and a token can span several characters.
    """

    words: tuple[str, ...]
    tokens: tuple[int, ...]
    word_ranges: tuple[range, ...]


def tokenize_words(text: str, tokenizer: Tokenizer, unit: Unit = "words") -> TokenizedWords:
    """Tokenize an input text and map its tokens to words."""
    return map_to_words(text, tokenizer.spans(text), unit)


def words_from_tokens(tokens: Sequence[int], tokenizer: Tokenizer, unit: Unit = "words") -> TokenizedWords:
    """Map the tokens a model generated to words; encoding the decoded text might give other tokens."""
    text, spans = spans_from_tokens(tokens, tokenizer)
    return map_to_words(text, spans, unit)


def spans_from_tokens(tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[str, list[TokenSpan]]:
    """The text of generated tokens, and the characters each covers."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    text, spans = "", []
    token_bytes = [*tokenizer.token_bytes(tokens[:1], at_start=True), *tokenizer.token_bytes(tokens[1:])]
    for token, data in zip(tokens, token_bytes, strict=True):
        start = len(text)
        text += decoder.decode(data)
        incomplete = bool(decoder.getstate()[0])  # a token with half a character overlaps that character
        spans.append(TokenSpan(token, start, len(text) + incomplete))
    return text + decoder.decode(b"", final=True), spans


def split_words(text: str, unit: Unit = "words") -> list[str]:
    """Split a text into words, or characters."""
    return PATTERNS[unit].findall(text)


def map_to_words(text: str, spans: Sequence[TokenSpan], unit: Unit) -> TokenizedWords:
    """Map tokens, by the characters they cover, to the words of the text."""
    word_spans = [match.span() for match in PATTERNS[unit].finditer(text)]
    ends = [end for _, end in word_spans]
    last = len(word_spans) - 1

    def word_at(character: int) -> int:
        return min(bisect_right(ends, character), last)

    ranges = tuple(range(word_at(start), word_at(max(start, end - 1)) + 1) for _, start, end in spans)
    words = tuple(text[start:end] for start, end in word_spans)
    return TokenizedWords(words, tuple(span.token for span in spans), ranges if words else (range(0),) * len(spans))


def word_probabilities(tokenized: TokenizedWords, log_probabilities: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """Return each word with its probability given the source and the words before it: P(word) = Π P(token).

    The probability of END, if it is the last of `log_probabilities`, belongs to no word.
    """
    totals = [0.0] * len(tokenized.words)
    for word_range, log_probability in zip(tokenized.word_ranges, log_probabilities, strict=False):
        for word in word_range:
            totals[word] += log_probability
    return tuple((word, exp(min(0.0, total))) for word, total in zip(tokenized.words, totals, strict=True))
