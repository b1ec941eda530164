"""A masked word found: which words could stand there, and how likely each is (G3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from heedful.data.batching import length_buckets
from heedful.data.collate import pad_sequences
from heedful.errors import UsageError
from heedful.objectives.masked_lm_loss import states_at
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer

MASK_TEXT = "[MASK]"
"""How a person writes a gap, whatever the vocabulary calls it."""
BATCH_TOKENS = 4096
"""Tokens in a batch, padding included."""


class Guess(NamedTuple):
    """A word for a gap."""

    word: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """A text, the likeliest words for each of its gaps in order, and the text with the first of them."""

    text: str
    guesses: tuple[tuple[Guess, ...], ...]
    filled: str

    def to_json(self) -> dict[str, Any]:
        gaps = [[guess._asdict() for guess in gap] for gap in self.guesses]
        return {"text": self.text, "guesses": gaps, "filled": self.filled}


class MaskFiller:
    """Fills the gaps of texts, `top` words for each.

    One gap stands for one token. Those of a text are filled independently: P(word | the text without all of them).
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, *, top: int = 5) -> None:
        if not 1 <= top <= len(tokenizer):
            raise UsageError(f"top must lie between 1 and the {len(tokenizer):,} words of the vocabulary, got {top}")
        self.model, self.tokenizer, self.top = model, tokenizer, top
        self.frame = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.gap = re.compile("|".join(map(re.escape, {MASK_TEXT, tokenizer.tokens[self.frame.mask]})))

    def problem(self, text: str) -> str:
        """Why a text cannot be filled, if so."""
        if not self.gap.search(text):
            return f"there is no {MASK_TEXT} to fill in {text!r:.60}"
        size, most = len(self.ids(text)), self.model.config.max_length
        return f"a text of {size} tokens is longer than the {most} this model reads; shorten it" if size > most else ""

    @cached_property
    def spaced(self) -> bool:
        """Whether words carry the space before them: a gap then stands for it, too."""
        return any(piece[:1] == " " and piece.strip() for piece in self.tokenizer.pieces(range(len(self.tokenizer))))

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, masks in its gaps."""
        parts = self.gap.split(text)
        if self.spaced:
            parts[:-1] = [part.removesuffix(" ") for part in parts[:-1]]
        first, *rest = parts
        found = self.tokenizer.encode([first])[0] if first else []
        for ids in self.tokenizer.encode(rest, at_start=False):
            found += [self.frame.mask, *ids]
        return self.frame.wrap(found)

    def fill(self, texts: Sequence[str]) -> list[FilledText]:
        """In order; blank texts stay blank."""
        rows = {number: self._checked(text) for number, text in enumerate(texts) if text.strip()}
        numbers = list(rows)
        found = {number: FilledText(text, (), text) for number, text in enumerate(texts)}
        for bucket in length_buckets([len(row) for row in rows.values()], BATCH_TOKENS):
            some = [numbers[index] for index in bucket]
            for number, guesses in zip(some, self._guess([rows[number] for number in some]), strict=True):
                found[number] = self._filled(texts[number], guesses)
        return [found[number] for number in range(len(texts))]

    def _checked(self, text: str) -> list[int]:
        if trouble := self.problem(text):
            raise UsageError(trouble)
        return self.ids(text)

    @torch.inference_mode()
    def _guess(self, rows: Sequence[list[int]]) -> list[list[list[tuple[int, float]]]]:
        """For each gap of each row, tokens and their probabilities, the likeliest first."""
        device = self.model.table.weight.device
        tokens, lengths = pad_sequences(rows, device=device)
        gaps = [[place for place, token in enumerate(row) if token == self.frame.mask] for row in rows]
        places, _ = pad_sequences(gaps, device=device)
        states = self.model(tokens, lengths)
        logits = self.model.apply_head("masked_token", states_at(states, places)).float()
        likely = logits.softmax(-1)[..., : len(self.tokenizer)]
        likely[..., sorted(self.tokenizer.special_ids)] = 0.0  # they are no words; the others keep their probability
        chances, words = (found.tolist() for found in likely.topk(self.top))
        return [
            [list(zip(words[row][gap], chances[row][gap], strict=True)) for gap in range(len(gaps[row]))]
            for row in range(len(rows))
        ]

    def _filled(self, text: str, guesses: list[list[tuple[int, float]]]) -> FilledText:
        pieces = [self.tokenizer.pieces([token for token, _ in gap]) for gap in guesses]
        words = tuple(
            tuple(Guess(piece.strip() or piece, chance) for piece, (_, chance) in zip(spelt, gap, strict=True))
            for spelt, gap in zip(pieces, guesses, strict=True)
        )
        first, *rest = self.gap.split(text)
        for spelt, after in zip(pieces, rest, strict=True):
            goes_on = spelt[0].startswith("##") or (self.spaced and not spelt[0].startswith(" "))
            first = (first.removesuffix(" ") if goes_on else first) + spelt[0].strip().removeprefix("##") + after
        return FilledText(text, words, first)
