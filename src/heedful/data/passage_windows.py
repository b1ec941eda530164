"""Passages as tokens with character offsets, and the overlapping windows a long passage is read in (T5).

    START question SEPARATOR passage[start : end] SEPARATOR

Answers are cut out of the passage by character offsets, so that they are the passage's own text whatever the tokenizer
normalizes (lower case, accents).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from heedful.config import Config
from heedful.errors import DataError
from heedful.text.tokenizer import Tokenizer

SPECIAL_TOKENS_AROUND = 3
"""START and two SEPARATORs."""


@dataclass(frozen=True)
class Passage:
    """A text's tokens and the characters each covers, without blanks around them."""

    text: str
    tokens: list[int]
    starts: list[int]
    ends: list[int]
    """A token that covers only blanks ends where it starts."""

    @classmethod
    def encode(cls, text: str, tokenizer: Tokenizer) -> Passage:
        tokens, starts, ends = [], [], []
        for token, start, end in tokenizer.spans(text):
            while start < end and text[start].isspace():
                start += 1
            while start < end and text[end - 1].isspace():
                end -= 1
            tokens.append(token)
            starts.append(start)
            ends.append(end)
        return cls(text, tokens, starts, ends)

    def __len__(self) -> int:
        return len(self.tokens)

    def has_text(self, token: int) -> bool:
        """Whether a token covers more than blanks, so that an answer could start or end with it."""
        return self.starts[token] < self.ends[token]

    def token_span(self, start: int, end: int) -> tuple[int, int]:
        """First and last token of the shortest span that covers these characters."""
        first, last = bisect_right(self.ends, start), bisect_left(self.starts, end) - 1
        if first > last:
            raise DataError(f"no token covers {self.text[start:end]!r:.60}")
        return first, last

    def character_span(self, first: int, last: int) -> tuple[int, int]:
        """Start and end in the text of a span of tokens."""
        return self.starts[first], max(self.ends[first : last + 1])


class PassageWindow(NamedTuple):
    """A window over a passage's tokens: [start, end)."""

    start: int
    end: int

    def answer_positions(self, span: tuple[int, int] | None, passage_start: int) -> tuple[int, int]:
        """Positions of an answer's first and last token in the input, where the passage begins at `passage_start`.

        0 and 0 (START) if the answer is not completely in this window (Devlin 2019, 4.3).
        """
        if span is None or span[0] < self.start or span[1] >= self.end:
            return 0, 0
        return span[0] - self.start + passage_start, span[1] - self.start + passage_start


class PassageWindows(Config):
    """Window size and stride for passages that are too long to read at once."""

    max_tokens: PositiveInt
    """Tokens of an input: question, passage and special tokens."""
    stride: NonNegativeInt
    """Tokens from one window to the next; 0: longer passages are an error."""

    def split(self, question: int, passage: int) -> list[PassageWindow]:
        """Split a passage of `passage` tokens into windows that fit beside a question of `question` tokens.

        They overlap by at least half, however long the question: a shorter answer is complete in one of them.
        """
        size = self.max_tokens - question - SPECIAL_TOKENS_AROUND
        if size < 1:
            raise DataError(
                f"a question of {question} tokens leaves no room for its passage in windows of {self.max_tokens} tokens"
            )
        if passage <= size:
            return [PassageWindow(0, passage)]
        if not self.stride:
            total = question + passage + SPECIAL_TOKENS_AROUND
            raise DataError(
                f"question and passage have {total} tokens, but the limit is {self.max_tokens} and windows are off: "
                "set a stride above 0"
            )
        step = min(self.stride, max(1, size // 2))
        starts = range(0, passage - size + step, step)
        return [PassageWindow(start, min(start + size, passage)) for start in starts]
