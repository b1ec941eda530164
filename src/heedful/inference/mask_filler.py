"""MaskFiller: predict the words at [MASK] positions with a masked language model (G3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import torch

from heedful.data.batching import map_length_buckets
from heedful.data.collate import pad_sequences
from heedful.errors import UsageError
from heedful.generation.streaming import FIRST_BATCH
from heedful.inference.trained_model import TrainedModel, text_batches, text_list
from heedful.objectives.masked_lm_loss import states_at

MASK_TEXT = "[MASK]"
"""How a mask is written in input text, whatever the vocabulary calls it."""
BATCH_TOKENS = 4096
TokenProbability = tuple[int, float]


class Guess(NamedTuple):
    """A candidate word for a mask."""

    word: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """A text, the most probable words for each of its masks, and the text with the best word in each."""

    text: str
    guesses: tuple[tuple[Guess, ...], ...]
    filled: str

    def to_json(self) -> dict[str, Any]:
        guesses = [[guess._asdict() for guess in mask] for mask in self.guesses]
        return {"text": self.text, "guesses": guesses, "filled": self.filled}


class MaskFiller(TrainedModel):
    """A masked language model.

    A mask stands for one token. The masks of a text are predicted independently: P(word | text with all masks).
    """

    kind = "a masked language model"

    @overload
    def fill(self, text: str, *, top: int = 5) -> FilledText: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, text: Iterable[str], *, top: int = 5) -> list[FilledText]: ...
    def fill(self, text: str | Iterable[str], *, top: int = 5) -> FilledText | list[FilledText]:
        """Predict the `top` most probable words for each [MASK] of a text, or of a list of texts."""
        texts, single = text_list(text)
        results = self._fill(texts, self._check_top(top))
        return results[0] if single else results

    def iter_fill(self, texts: Iterable[str | None], *, top: int = 5) -> Iterator[FilledText]:
        """Fill a stream of texts lazily and in order. None in the stream flushes what came before."""
        self._check_top(top)
        return (result for batch in text_batches(texts, FIRST_BATCH) for result in self._fill(batch, top))

    def problem(self, text: str) -> str:
        """The reason why a text cannot be filled; empty if it can."""
        if not self.mask_pattern.search(text):
            return f"there is no {MASK_TEXT} to fill in {text!r:.60}"
        size, limit = len(self.encode(text)), self.model.config.max_length
        return f"a text of {size} tokens is longer than this model's {limit}; shorten it" if size > limit else ""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with mask tokens where it says [MASK]."""
        parts = self.mask_pattern.split(text)
        if self.tokenizer.has_space_prefixes:
            parts[:-1] = [part.removesuffix(" ") for part in parts[:-1]]
        first, *others = parts
        tokens = self.tokenizer.encode([first])[0] if first else []
        for ids in self.tokenizer.encode(others, at_start=False):
            tokens += [self.template.mask, *ids]
        return self.template.wrap(tokens)

    @cached_property
    def mask_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, {MASK_TEXT, self.tokenizer.tokens[self.template.mask]})))

    def _check_top(self, top: int) -> int:
        if not 1 <= top <= len(self.tokenizer):
            raise UsageError(
                f"top must be between 1 and {len(self.tokenizer):,}, the size of the vocabulary; got {top}"
            )
        return top

    def _fill(self, texts: Sequence[str], top: int) -> list[FilledText]:
        results = [FilledText(text, (), text) for text in texts]
        indices = [index for index, text in enumerate(texts) if text.strip()]
        for index in indices:
            if problem := self.problem(texts[index]):
                raise UsageError(problem)
        rows = [self.encode(texts[index]) for index in indices]
        predictions = map_length_buckets(
            lambda bucket: self._predict([rows[row] for row in bucket], top), [len(row) for row in rows], BATCH_TOKENS
        )
        for index, each in zip(indices, predictions, strict=True):
            results[index] = self._filled(texts[index], each)
        return results

    @torch.inference_mode()
    def _predict(self, rows: Sequence[list[int]], top: int) -> list[list[list[TokenProbability]]]:
        """For each mask of each row, the most probable tokens and their probabilities."""
        tokens, lengths = pad_sequences(rows, device=self.device)
        masks = [[position for position, token in enumerate(row) if token == self.template.mask] for row in rows]
        positions, _ = pad_sequences(masks, device=self.device)
        states = self.model(tokens, lengths)
        logits = self.model.apply_head("masked_token", states_at(states, positions)).float()
        probabilities = logits.softmax(-1)[..., : len(self.tokenizer)]
        probabilities[..., sorted(self.tokenizer.special_ids)] = 0.0  # not words; the others keep their probability
        values, ids = (each.tolist() for each in probabilities.topk(top))
        return [
            [list(zip(ids[row][mask], values[row][mask], strict=True)) for mask in range(len(masks[row]))]
            for row in range(len(rows))
        ]

    def _filled(self, text: str, predictions: list[list[TokenProbability]]) -> FilledText:
        pieces = [self.tokenizer.pieces([token for token, _ in mask]) for mask in predictions]
        guesses = tuple(
            tuple(Guess(piece.strip() or piece, probability) for piece, (_, probability) in zip(*mask, strict=True))
            for mask in zip(pieces, predictions, strict=True)
        )
        filled, *others = self.mask_pattern.split(text)
        for (best, *_), after in zip(pieces, others, strict=True):
            continues_word = best.startswith("##") or (self.tokenizer.has_space_prefixes and not best.startswith(" "))
            filled = (filled.removesuffix(" ") if continues_word else filled) + best.strip().removeprefix("##") + after
        return FilledText(text, guesses, filled)
