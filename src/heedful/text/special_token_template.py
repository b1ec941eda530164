"""Special tokens around the texts a model reads: START text SEPARATOR, or START first SEPARATOR second SEPARATOR.

These are BERT's [CLS] and [SEP] (Devlin 2019): START's state can represent the whole input, SEPARATOR ends a text.
Imported vocabularies have their own tokens for them, which are found by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heedful.errors import UsageError
from heedful.text.special_tokens import END, MASK, SEPARATOR, SPECIAL_TOKENS, START
from heedful.text.tokenizer import Tokenizer

NAMES = (("[CLS]", "[SEP]", "[MASK]"), ("<s>", "</s>", "<mask>"))
"""Start, end and mask in the vocabularies of BERT and RoBERTa."""


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The start, end and mask ids of a vocabulary, and how an encoder's input is built from them."""

    start: int = START
    end: int = SEPARATOR
    mask: int = MASK

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> SpecialTokenTemplate:
        """Find the ids in this vocabulary: trained here, or with BERT's or RoBERTa's names."""
        tokens = tokenizer.tokens
        if tuple(tokens[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS:
            return cls()
        ids = {token: index for index, token in enumerate(tokens)}
        for names in NAMES:
            if all(name in ids for name in names):
                return cls(*(ids[name] for name in names))
        known = " or ".join(", ".join(names) for names in NAMES)
        raise UsageError(f"this vocabulary has no tokens that start, end and mask a text ({known})")

    def wrap(self, *texts: Sequence[Any]) -> list[Any]:
        """START first SEPARATOR second SEPARATOR …; tokens are ids, or values that hold one."""
        return [self.start, *(token for text in texts for token in (*text, self.end))]

    def segment_ids(self, *texts: Sequence[Any]) -> list[int]:
        """Return the number of the text each token of `wrap` belongs to; START belongs to the first."""
        return [0, *(number for number, text in enumerate(texts) for _ in range(len(text) + 1))]


@dataclass(frozen=True)
class DecoderTemplate(SpecialTokenTemplate):
    """Input of a decoder: text END, or first SEPARATOR second END (after Radford 2018, 3.3).

    Only the last token has seen all of the input, so it represents the whole; no START is needed.
    """

    def wrap(self, *texts: Sequence[Any]) -> list[Any]:
        row = [token for text in texts for token in (*text, SEPARATOR)]
        return [*row[:-1], END]

    def segment_ids(self, *texts: Sequence[Any]) -> list[int]:
        return super().segment_ids(*texts)[1:]


def template_for(family: str, tokenizer: Tokenizer) -> SpecialTokenTemplate:
    """Return the template of a model family."""
    return SpecialTokenTemplate.from_tokenizer(tokenizer) if family == "encoder" else DecoderTemplate()


def max_text_tokens(max_length: int, texts: int) -> int:
    """Return how many tokens of text fit beside START and one separator per text, in any family."""
    return max(texts, max_length - 1 - texts)


def truncated_lengths(lengths: Sequence[int], limit: int) -> list[int]:
    """Return how many tokens of each text to keep so that they are `limit` in all; the longest is cut first."""
    kept = list(lengths)
    while (excess := sum(kept) - limit) > 0:
        longest = max(range(len(kept)), key=kept.__getitem__)
        next_longest = max((length for index, length in enumerate(kept) if index != longest), default=0)
        kept[longest] -= max(1, min(excess, kept[longest] - next_longest))
    return kept
