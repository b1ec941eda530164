"""MaskFiller: predict the words at [MASK] positions with a masked language model (G3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, overload

import numpy as np
import torch

from heedful.data.batching import map_length_buckets
from heedful.data.collate import pad_sequences
from heedful.data.corpus_files import uniform_hash
from heedful.errors import UsageError
from heedful.generation.streaming import FIRST_BATCH
from heedful.inference.finite_outputs import require_finite
from heedful.inference.text_arguments import text_batches, text_list
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.text_pass import Output, TextPass, run_passes
from heedful.interventions.kinds import Intervention, as_interventions
from heedful.models.encoder import Encoder
from heedful.objectives.masked_lm_loss import states_at
from heedful.text.token_rows import TokenRow, build_row
from heedful.text.tokenizer import TokenSpan

MASK_TEXT = "[MASK]"
"""How a mask is written in input text, whatever the vocabulary calls it."""
BATCH_TOKENS = 4096
SPECIAL_TOKENS_AROUND = 2
MASKED_SHARE = 0.15
"""Share of a text's tokens that are masked to score the model on it (Devlin 2019)."""
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

    model: Encoder
    kind = "a masked language model"
    needs_answers = False

    @overload
    def fill(  # type: ignore[overload-overlap]
        self, text: str, *, top: int = 5, interventions: Sequence[Intervention] | None = None
    ) -> FilledText: ...
    @overload
    def fill(
        self, text: Iterable[str], *, top: int = 5, interventions: Sequence[Intervention] | None = None
    ) -> list[FilledText]: ...
    def fill(
        self, text: str | Iterable[str], *, top: int = 5, interventions: Sequence[Intervention] | None = None
    ) -> FilledText | list[FilledText]:
        """Predict the `top` most probable words for each [MASK] of a text, or of a list of texts."""
        texts, single = text_list(text)
        fill = partial(self._fill, top=self._check_top(top))
        results = list(self.intervened(fill, texts, as_interventions(interventions)))
        return results[0] if single else results

    def iter_fill(
        self, texts: Iterable[str | None], *, top: int = 5, interventions: Sequence[Intervention] | None = None
    ) -> Iterator[FilledText]:
        """Fill a stream of texts lazily and in order. None in the stream flushes what came before."""
        fill, checked = partial(self._fill, top=self._check_top(top)), as_interventions(interventions)
        batches = text_batches(texts, FIRST_BATCH)
        return (result for batch in batches for result in self.intervened(fill, batch, checked))

    def text_pass(
        self, text: str, target: str | None = None, *, interventions: Sequence[Intervention] | None = None
    ) -> TextPass:
        """The pass over a text with masks; the outputs are the most probable tokens, or `target` for every mask."""
        if problem := self.problem(text):
            raise UsageError(problem)
        row = self.input_row(text)
        masks = [position for position, token in enumerate(row.ids) if token == self.template.mask]
        predict, checked = partial(self._predict, top=1), as_interventions(interventions)
        tokens = [mask[0][0] for mask in self.intervened(predict, [list(row.ids)], checked, lambda _: text)[0]]
        if target is not None:
            ids = self.tokenizer.encode([target])[0]
            if len(ids) != 1:
                raise UsageError(f"a mask stands for one token, and '{target}' is {len(ids)} tokens of this model")
            tokens = ids * len(masks)
        outputs = zip(masks, tokens, self.tokenizer.pieces(tokens), strict=True)
        return TextPass("masked_token", row, tuple(Output(*output) for output in outputs))

    def reading(self, text: str, target: str | None = None) -> Callable[[], object]:
        """A function that runs the model on a text; one without masks has no output."""
        if self.mask_pattern.search(text):
            return super().reading(text, target)
        return partial(run_passes, self.model, [TextPass(None, self.input_row(text), ())])

    def scored_passes(self, example: str | tuple[str, str]) -> list[TextPass]:
        """The passes over running text in which some tokens are masked, the same ones for the same text.

        A long text is read in several windows.
        """
        if not isinstance(example, str):
            return [self.text_pass(*example)]
        spans, size = self.tokenizer.spans(example), self.model.config.max_length - SPECIAL_TOKENS_AROUND
        windows = (spans[start : start + size] for start in range(0, len(spans), size))
        rows = [build_row(example, self.template.wrap(window), self.tokenizer, "words") for window in windows]
        generator = np.random.default_rng(uniform_hash(example))
        return [self._masked_pass(row, generator) for row in rows]

    def _masked_pass(self, row: TokenRow, generator: np.random.Generator) -> TextPass:
        """The pass over a row with some of its tokens masked, which are the outputs."""
        spans = enumerate(zip(row.spans, row.pieces, strict=True))
        words = [position for position, (span, piece) in spans if span is not None and piece.strip()]
        count = min(len(words), max(1, round(MASKED_SHARE * len(words))))
        masked = sorted(generator.choice(words, count, replace=False).tolist()) if words else []
        outputs = tuple(Output(position, row.ids[position], row.pieces[position]) for position in masked)
        mask = self.template.mask
        ids = tuple(mask if position in masked else token for position, token in enumerate(row.ids))
        return TextPass("masked_token", replace(row, ids=ids, pieces=tuple(self.tokenizer.pieces(ids))), outputs)

    def output_probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The probabilities of the tokens that are words; special tokens have none, the others keep theirs."""
        probabilities = logits.softmax(-1)[..., : len(self.tokenizer)]
        special = torch.tensor(sorted(self.tokenizer.special_ids), device=logits.device)
        return probabilities.index_fill(-1, special, 0.0)

    @property
    def occluding_token(self) -> int:
        return self.template.mask

    def input_row(self, text: str) -> TokenRow:
        """The tokens of a text with its masks, and the special tokens around them."""
        spans = iter(self._part_spans(text))
        special = {self.template.start, self.template.end, self.template.mask}
        tokens = [token if token in special else next(spans) for token in self.encode(text)]
        return build_row(text, tokens, self.tokenizer, "words")

    def _part_spans(self, text: str) -> Iterator[TokenSpan]:
        """The tokens between masks, with the characters of the whole text that they cover."""
        start = 0
        for index, end in enumerate([*(match.start() for match in self.mask_pattern.finditer(text)), len(text)]):
            part = text[start:end]
            if self.tokenizer.has_space_prefixes and end < len(text):
                part = part.removesuffix(" ")
            ids = self.tokenizer.encode([part], at_start=not index)[0] if part else []
            spans = self.tokenizer.spans(part)
            for position, token in enumerate(ids):
                span = spans[min(position, len(spans) - 1)]
                yield TokenSpan(token, span.start + start, span.end + start)
            match = self.mask_pattern.match(text, end)
            start = match.end() if match else end

    def problem(self, text: str) -> str:
        """The reason why a text cannot be filled; empty if it can."""
        if not self.mask_pattern.search(text):
            return f"there is no {MASK_TEXT} to fill in {text!r:.60}"
        size, limit = len(self.encode(text)), self.model.config.max_length
        return f"a text of {size} tokens is longer than this model's {limit}; shorten it" if size > limit else ""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with mask tokens for [MASK]."""
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
        for index, guesses in zip(indices, predictions, strict=True):
            results[index] = self._filled(texts[index], guesses)
        return results

    @torch.inference_mode()
    def _predict(self, rows: Sequence[list[int]], top: int) -> list[list[list[TokenProbability]]]:
        """For each mask of each row, the most probable tokens and their probabilities."""
        tokens, lengths = pad_sequences(rows, device=self.device)
        masks = [[position for position, token in enumerate(row) if token == self.template.mask] for row in rows]
        positions, _ = pad_sequences(masks, device=self.device)
        states = self.model(tokens, lengths)
        logits = self.model.apply_head("masked_token", states_at(states, positions)).float()
        values, ids = (tensor.tolist() for tensor in require_finite(self.output_probabilities(logits)).topk(top))
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
