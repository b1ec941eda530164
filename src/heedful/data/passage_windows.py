"""A passage as tokens that know their characters, and the overlapping windows in which a long one is read (T5).

    START question SEPARATOR passage[first : last] SEPARATOR

Answers are cut out of the passage as it was given, by the characters that tokens cover: whatever a tokenizer makes of
the text on its way (small letters, other accents), the answer is what the passage says.
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
"""START, and SEPARATOR twice."""


@dataclass(frozen=True)
class Passage:
    """A text's tokens and the characters each covers. Blanks around a token's characters are left off."""

    text: str
    tokens: list[int]
    starts: list[int]
    ends: list[int]
    """A token that covers nothing but blanks ends where it starts."""

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
        """Whether it stands for more than blanks, so that an answer could start or end with it."""
        return self.starts[token] < self.ends[token]

    def token_span(self, start: int, end: int) -> tuple[int, int]:
        """The first and the last token with a part in these characters: the shortest span that holds them all."""
        first, last = bisect_right(self.ends, start), bisect_left(self.starts, end) - 1
        if first > last:
            raise DataError(f"no token stands for {self.text[start:end]!r:.60}")
        return first, last

    def character_span(self, first: int, last: int) -> tuple[int, int]:
        """Where the span of these tokens starts and ends in the text."""
        return self.starts[first], max(self.ends[first : last + 1])


class PassageWindow(NamedTuple):
    """A stretch of a passage's tokens: first to last, without the last."""

    start: int
    end: int

    def answer_positions(self, span: tuple[int, int] | None, begins: int) -> tuple[int, int]:
        """Where an answer starts and ends in the input, whose passage `begins` there; START twice if it is not here,
        or not whole (Devlin 2019, 4.3)."""
        if span is None or span[0] < self.start or span[1] >= self.end:
            return 0, 0
        return span[0] - self.start + begins, span[1] - self.start + begins


class PassageWindows(Config):
    """How passages are read: in inputs of so many tokens at most, and so many tokens further each time."""

    max_tokens: PositiveInt
    """Tokens of question, passage and what stands around them."""
    stride: NonNegativeInt
    """0: passages are read whole or not at all."""

    def split(self, question: int, passage: int) -> list[PassageWindow]:
        """The windows of a passage of so many tokens, beside a question of so many.

        They overlap by half at least, however long the question: an answer shorter than that is whole in one of them.
        """
        room = self.max_tokens - question - SPECIAL_TOKENS_AROUND
        if room < 1:
            raise DataError(
                f"a question of {question} tokens leaves no room for its passage in windows of {self.max_tokens} tokens"
            )
        if passage <= room:
            return [PassageWindow(0, passage)]
        if not self.stride:
            raise DataError(
                f"question and passage of {question + passage + SPECIAL_TOKENS_AROUND} tokens are longer than the {self.max_tokens} "
                "read at once, and windows are off (stride 0)"
            )
        step = min(self.stride, max(1, room // 2))
        firsts = range(0, passage - room + step, step)
        return [PassageWindow(first, min(first + room, passage)) for first in firsts]
