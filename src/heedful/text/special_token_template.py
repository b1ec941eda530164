"""What stands around the texts that an encoder reads: START text SEPARATOR, or START one SEPARATOR other SEPARATOR.

These are BERT's [CLS] and [SEP] (Devlin 2019): START's state can stand for the whole, and SEPARATOR says where a text
is over. A vocabulary of someone else's has tokens of its own for them, which are known by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heedful.errors import UsageError
from heedful.text.special_tokens import END, MASK, SEPARATOR, SPECIAL_TOKENS, START
from heedful.text.tokenizer import Tokenizer

NAMES = (("[CLS]", "[SEP]", "[MASK]"), ("<s>", "</s>", "<mask>"))
"""Start, end and mask, as BERT's vocabularies and RoBERTa's call them."""


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The ids that start, end and hide, in some vocabulary."""

    start: int = START
    end: int = SEPARATOR
    mask: int = MASK

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> SpecialTokenTemplate:
        """Those of this vocabulary: ours, or by their usual names."""
        tokens = tokenizer.tokens
        if tuple(tokens[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS:
            return cls()
        places = {token: place for place, token in enumerate(tokens)}
        for names in NAMES:
            if all(name in places for name in names):
                return cls(*(places[name] for name in names))
        known = " or ".join(", ".join(names) for names in NAMES)
        raise UsageError(f"this vocabulary has no tokens that start, end and mask a text ({known})")

    def wrap(self, *texts: Sequence[int]) -> list[int]:
        """START one SEPARATOR other SEPARATOR …"""
        return [self.start, *(token for text in texts for token in (*text, self.end))]

    def segment_ids(self, *texts: Sequence[int]) -> list[int]:
        """Which text each of these tokens belongs to: START to the first, a SEPARATOR to the one it ends."""
        return [0, *(number for number, text in enumerate(texts) for _ in range(len(text) + 1))]


@dataclass(frozen=True)
class DecoderTemplate(SpecialTokenTemplate):
    """What a decoder reads: one END, or one SEPARATOR other END (after Radford 2018, 3.3).

    It has read all of it only at the end: the last token stands for the whole, and nothing need stand before.
    """

    def wrap(self, *texts: Sequence[int]) -> list[int]:
        row = [token for text in texts for token in (*text, SEPARATOR)]
        return [*row[:-1], END]

    def segment_ids(self, *texts: Sequence[int]) -> list[int]:
        return super().segment_ids(*texts)[1:]


def template_for(family: str, tokenizer: Tokenizer) -> SpecialTokenTemplate:
    """How a model of this family is given texts."""
    return SpecialTokenTemplate.from_tokenizer(tokenizer) if family == "encoder" else DecoderTemplate()


def max_text_tokens(max_length: int, texts: int) -> int:
    """Tokens of text that fit, whatever the family: START and an end to each text need places, too."""
    return max(texts, max_length - 1 - texts)


def truncated_lengths(lengths: Sequence[int], limit: int) -> list[int]:
    """How many tokens of each text to keep, that they be `most` together: the longer one gives way first."""
    kept = list(lengths)
    while (over := sum(kept) - limit) > 0:
        longest = max(range(len(kept)), key=lambda place: kept[place])
        next_longest = max((length for place, length in enumerate(kept) if place != longest), default=0)
        kept[longest] -= max(1, min(over, kept[longest] - next_longest))
    return kept
