"""Small tasks with a known solution: copy, reverse, which symbol is first, dates, and characters of running text."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import Indices
from heedful.data.collate import pad_sequences
from heedful.data.dates_corpus import dates_corpus
from heedful.data.labeled_dataset import ClassBatch
from heedful.data.masked_lm_batches import MaskedBatches
from heedful.data.masking import Masking
from heedful.data.pair_dataset import PairBatch
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.inspection.attention_alignment import TranslationModel
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.classification_loss import ClassificationLoss
from heedful.objectives.masked_lm_loss import MaskedLMLoss
from heedful.objectives.objective import Objective, to_device
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.text.special_tokens import END, PAD, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

FIRST_SYMBOL = 6
"""The first token id that is not special."""
TEST_SEED = 1_000_003
"""Seed of all test data, independent of the training seed."""
Generator = np.random.Generator


@dataclass(frozen=True)
class GeneratedBatches:
    """An endless stream of generated batches without repetition; each is a function of (seed, epoch, index)."""

    draw: Callable[[Generator], Any]
    seed: int
    count: int = 1000
    fixed_shape = False
    unit = "tokens"

    @property
    def labels_per_epoch(self) -> int:
        """Batches per epoch (the number of labels is not needed here)."""
        return self.count

    def plan(self, epoch: int) -> list[Indices]:
        return [np.array([index]) for index in range(self.count)]

    def batch(self, epoch: int, indices: Indices) -> Any:
        return self.draw(np.random.default_rng([self.seed, epoch, int(indices[0])]))


def pair_batch(source: Any, target: Any) -> PairBatch:
    """A teacher-forcing batch from sources of equal length and targets of equal length."""
    sources, lengths = pad_sequences(list(source), end=END)
    return PairBatch(
        sources, lengths, pad_sequences(list(target), start=START)[0], pad_sequences(list(target), end=END)[0]
    )


class PairTask:
    """A task from a source to a target, scored by exact match."""

    objective: ClassVar[Objective] = Seq2SeqLoss()
    vocabulary: int

    @property
    def model_settings(self) -> dict[str, Any]:
        return {"family": "encoder_decoder", "vocabulary": self.vocabulary}

    def test_batch(self) -> PairBatch:
        """Held-out pairs."""
        raise NotImplementedError

    @torch.inference_mode()
    def exact_match(self, model: TranslationModel, batch: PairBatch | None = None) -> float:
        """Share of targets that greedy search would generate without an error.

        One pass suffices: greedy search generates the target if and only if every token of it has the highest
        probability after the ones before it.
        """
        return float(self.correct_tokens(model, batch).all(1).float().mean())

    def token_accuracy(self, model: TranslationModel, batch: PairBatch | None = None) -> float:
        """Share of target tokens that have the highest probability after the ones before them."""
        batch = batch or self.test_batch()
        real = (batch.labels != PAD).to(model.device)
        return float(self.correct_tokens(model, batch)[real].float().mean())

    @torch.inference_mode()
    def correct_tokens(self, model: TranslationModel, batch: PairBatch | None = None) -> Tensor:
        """Whether each token of the targets has the highest probability; padding counts as right."""
        batch = to_device(batch or self.test_batch(), model.device)
        logits = model(batch.source, batch.target, batch.source_lengths)
        right: Tensor = (logits.argmax(-1) == batch.labels) | (batch.labels == PAD)
        return right


@dataclass(frozen=True)
class ReorderTask(PairTask):
    """Copy, reverse or sort a random sequence of symbols."""

    order: Literal["copy", "reverse", "sort"] = "copy"
    symbols: int = 10
    shortest: int = 4
    longest: int = 8
    rows: int = 48

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return FIRST_SYMBOL + self.symbols

    def batches(self, seed: int) -> GeneratedBatches:
        return GeneratedBatches(lambda generator: self.draw(generator, self.rows), seed)

    def draw(self, generator: Generator, rows: int, length: int | None = None) -> PairBatch:
        """Sequences of one length, which differs from batch to batch."""
        length = length or int(generator.integers(self.shortest, self.longest + 1))
        source = generator.integers(FIRST_SYMBOL, self.vocabulary, (rows, length))
        target = {"copy": source, "reverse": source[:, ::-1], "sort": np.sort(source)}[self.order]
        return pair_batch(source, target)

    def test_batch(self, length: int | None = None, rows: int = 256) -> PairBatch:
        """Pairs of the maximum length, or of `length`."""
        return self.draw(np.random.default_rng([TEST_SEED, length or 0]), rows, length or self.longest)


@dataclass(frozen=True)
class WhichFirstTask:
    """Classify whether the first of two marked symbols precedes the second in a text of other symbols."""

    symbols: int = 10
    shortest: int = 6
    longest: int = 16
    rows: int = 64
    objective: ClassVar[Objective] = ClassificationLoss()

    @property
    def model_settings(self) -> dict[str, Any]:
        vocabulary = FIRST_SYMBOL + self.symbols
        return {
            "family": "encoder", "vocabulary": vocabulary, "tasks": ("sequence_class",), "classes": 2,
            "pooling": "mean",
        }  # fmt: skip

    def batches(self, seed: int) -> GeneratedBatches:
        return GeneratedBatches(lambda generator: self.draw(generator, self.rows), seed)

    def draw(self, generator: Generator, rows: int) -> ClassBatch:
        length = int(generator.integers(self.shortest, self.longest + 1))
        tokens = generator.integers(FIRST_SYMBOL + 2, FIRST_SYMBOL + self.symbols, (rows, length))
        places = np.argsort(generator.random((rows, length)), axis=1)[:, :2]
        np.put_along_axis(tokens, places, np.array([[FIRST_SYMBOL, FIRST_SYMBOL + 1]]), axis=1)
        labels = torch.from_numpy((places[:, 0] < places[:, 1]).astype(np.int64))
        tensor = torch.from_numpy(tokens)
        return ClassBatch(tensor, torch.full((rows,), length), torch.zeros_like(tensor), labels, torch.ones(rows))

    @torch.inference_mode()
    def accuracy(self, model: Any, batches: int = 8) -> float:
        """Share of held-out texts that are classified correctly; guessing gives one half."""
        right = total = 0
        for number in range(batches):
            batch = to_device(self.draw(np.random.default_rng([TEST_SEED, number]), 64), model.device)
            logits = model.apply_head("sequence_class", model.states(batch.tokens, batch.lengths), batch.lengths)
            right += int((logits.argmax(-1) == batch.labels).sum())
            total += len(batch.labels)
        return right / total


@cache
def _dates(languages: tuple[str, ...]) -> tuple[Tokenizer, list[tuple[list[int], list[int]]], Any]:
    """The tokenizer of characters, and the encoded pairs of the training and the test split."""
    corpus = dates_corpus(train=2000, valid=1, test=200, languages=languages)
    texts = [text for pair in corpus.train for text in (pair.source, pair.target)]
    tokenizer = Tokenizer.train(texts, TokenizerConfig(kind="characters", vocabulary=1000))

    def encode(pairs: Any) -> list[tuple[list[int], list[int]]]:
        sources = tokenizer.encode([pair.source for pair in pairs])
        targets = tokenizer.encode([pair.target for pair in pairs])
        return list(zip(sources, targets, strict=True))

    return tokenizer, encode(corpus.train), encode(corpus.test)


@dataclass(frozen=True)
class DateTask(PairTask):
    """Translate written dates to ISO 8601, by characters: the built-in corpus."""

    languages: tuple[str, ...] = ("en", "de", "fr")
    rows: int = 48

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return len(_dates(self.languages)[0])

    def batches(self, seed: int) -> GeneratedBatches:
        pairs = _dates(self.languages)[1]

        def draw(generator: Generator) -> PairBatch:
            chosen = [pairs[index] for index in generator.integers(len(pairs), size=self.rows)]
            return pair_batch(*zip(*chosen, strict=True))

        return GeneratedBatches(draw, seed)

    def test_batch(self) -> PairBatch:
        return pair_batch(*zip(*_dates(self.languages)[2], strict=True))


@cache
def running_text() -> tuple[str, str]:
    """A text for language models and its name: Tiny Shakespeare from HEEDFUL_DATA, else the built-in dates as lines."""
    folder = Path(os.environ.get("HEEDFUL_DATA", "")) / "tinyshakespeare"
    files = sorted(folder.glob("*.txt")) if os.environ.get("HEEDFUL_DATA") else []
    if files:
        return max(files, key=lambda file: file.stat().st_size).read_text(encoding="utf-8"), "Tiny Shakespeare"
    pairs = dates_corpus(train=15_000, valid=1, test=1).train
    return "\n".join(f"{pair.source} = {pair.target}" for pair in pairs), "the built-in dates"


@cache
def _encoded_text(characters: int) -> tuple[Tokenizer, Sequences, Sequences]:
    """The tokenizer of characters; training text, and the held-out last tenth."""
    text = running_text()[0][:characters]
    tokenizer = Tokenizer.train([text], TokenizerConfig(kind="characters", vocabulary=500))
    (ids,) = tokenizer.encode([text])
    cut = len(ids) * 9 // 10
    return tokenizer, Sequences.from_lists([ids[:cut]]), Sequences.from_lists([ids[cut:]])


@dataclass(frozen=True)
class CharacterTask:
    """Predict the characters of running text: the next one (a decoder), or masked ones (an encoder)."""

    predict: Literal["next", "masked"] = "next"
    context: int = 64
    rows: int = 16
    characters: int = 200_000
    """Text used, from its beginning."""

    @property
    def objective(self) -> Objective:
        return CausalLMLoss() if self.predict == "next" else MaskedLMLoss()

    @property
    def model_settings(self) -> dict[str, Any]:
        vocabulary = len(_encoded_text(self.characters)[0])
        if self.predict == "next":
            return {"family": "decoder", "vocabulary": vocabulary}
        return {"family": "encoder", "vocabulary": vocabulary, "tasks": ("masked_token",)}

    def batches(self, seed: int, *, held_out: bool = False, context: int | None = None) -> Any:
        """Windows of the training text, or of the held-out text in a fixed order."""
        tokenizer, train, test = _encoded_text(self.characters)
        text, shuffle, context = test if held_out else train, not held_out, context or self.context
        if self.predict == "next":
            return TextBatches(text, context=context, rows=self.rows, seed=seed, shuffle=shuffle)
        return MaskedBatches(text, Masking(tokenizer), context=context, rows=self.rows, seed=seed, shuffle=shuffle)

    @torch.inference_mode()
    def loss(self, model: Any, batches: int = 20, context: int | None = None) -> float:
        """Nats per held-out character."""
        held_out = self.batches(TEST_SEED, held_out=True, context=context)
        total = labels = 0.0
        for indices in held_out.plan(0)[:batches]:
            batch = held_out.batch(0, indices)
            labels += self.objective.token_count(batch)
            total += float(self.objective.loss(model, to_device(batch, model.device)))
        return total / labels
