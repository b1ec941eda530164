"""The tokens of one input or output with what each covers: characters of the text, words, special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heedful.text.tokenizer import Tokenizer, TokenSpan
from heedful.text.word_tokens import PATTERNS, Unit, map_to_words, spans_from_tokens


@dataclass(frozen=True)
class TokenRow:
    """A row of a model's input or output. All numbers are counted from 0."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """Each token as readable text; special tokens by their names."""
    spans: tuple[tuple[int, int] | None, ...]
    """The characters of `text` that each token covers; None for special tokens."""
    words: tuple[str, ...]
    word_ranges: tuple[range, ...]
    """The words that each token belongs to; empty for special tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    def tokens_of_word(self, word: int) -> list[int]:
        """Positions of the tokens of a word."""
        return [position for position, words in enumerate(self.word_ranges) if word in words]

    def to_json(self) -> dict[str, Any]:
        rows = zip(self.ids, self.pieces, self.spans, self.word_ranges, strict=True)
        return {
            "text": self.text,
            "words": list(self.words),
            "tokens": [
                {"id": token, "text": piece, "span": None if span is None else list(span), "words": list(words)}
                for token, piece, span, words in rows
            ],
        }


def span_text(row: TokenRow, ends: Sequence[int]) -> str:
    """The text from the first to the last of two tokens; empty if one is a special token, or there are none."""
    spans = [row.spans[token] for token in ends]
    if not spans or spans[0] is None or spans[-1] is None:
        return ""
    return row.text[spans[0][0] : spans[-1][1]].strip()


def text_row(text: str, tokenizer: Tokenizer, unit: Unit = "words", *, before: Sequence[int] = (),
             after: Sequence[int] = ()) -> TokenRow:  # fmt: skip
    """The row of an input text, with special tokens before and after it."""
    return build_row(text, [*before, *tokenizer.spans(text), *after], tokenizer, unit)


def generated_row(tokens: Sequence[int], tokenizer: Tokenizer, unit: Unit = "words", *, before: Sequence[int] = (),
                  after: Sequence[int] = ()) -> TokenRow:  # fmt: skip
    """The row of tokens that a model generated; encoding their text might give other tokens."""
    text, spans = spans_from_tokens(tokens, tokenizer)
    return build_row(text, [*before, *spans, *after], tokenizer, unit)


def build_row(text: str, tokens: Sequence[TokenSpan | int], tokenizer: Tokenizer, unit: Unit) -> TokenRow:
    """A row of tokens of the text, and of special tokens, which are given by their ids alone."""
    spans = [token for token in tokens if isinstance(token, TokenSpan)]
    ranges = iter(map_to_words(text, spans, unit).word_ranges)
    ids = tuple(token.token if isinstance(token, TokenSpan) else token for token in tokens)
    return TokenRow(
        text,
        ids,
        tuple(tokenizer.pieces(ids)),
        tuple((token.start, token.end) if isinstance(token, TokenSpan) else None for token in tokens),
        tuple(PATTERNS[unit].findall(text)),
        tuple(next(ranges) if isinstance(token, TokenSpan) else range(0) for token in tokens),
    )
