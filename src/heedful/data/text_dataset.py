"""Running text for language models: tokenizer, dataset and batches (T3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_readers import read_documents, read_sentences
from heedful.data.dataset import (
    PreparedData,
    SplitWriter,
    dataset_folder,
    encoding_blocks,
    new_dataset,
    open_dataset,
    train_tokenizer,
)
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.token_store import Sequences, is_intact
from heedful.shapes import Int
from heedful.text.special_tokens import END, PAD
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


@dataclass(frozen=True)
class TextBatch:
    """Windows of running text; the label of each token is the next token."""

    ignore_index: ClassVar[int] = PAD

    tokens: Int[Tensor, "batch tokens"]
    labels: Int[Tensor, "batch tokens"]
    document_ids: Int[Tensor, "batch tokens"] | None = None
    """The document each token belongs to; None if the text is a single document."""


class TextBatches:
    """Every token once per epoch, in windows of `context` tokens with a new offset each epoch."""

    fixed_shape = True
    unit = "tokens"

    def __init__(
        self, text: Sequences, *, context: int, rows: int, seed: int, shuffle: bool = True, tokens: int | None = None
    ) -> None:
        self.text, self.context, self.rows = text, context, rows
        self.seed, self.shuffle = seed, shuffle
        self.total = len(text.ids) if tokens is None else min(tokens, len(text.ids))

    @property
    def labels_per_epoch(self) -> int:
        """Tokens to predict in an epoch: all but the first."""
        return self.total - 1

    def plan(self, epoch: int) -> list[Indices]:
        """The batches of an epoch as window starts."""
        generator = np.random.default_rng([self.seed, epoch])
        context = min(self.context, self.total - 1)
        offset = int(generator.integers(min(context, self.total - context))) if self.shuffle else 0
        starts = np.arange(offset, self.total - 1, context)
        if self.shuffle:  # full windows only, so that every batch has one shape
            starts = generator.permutation(starts[starts + context < self.total])
        return [starts[i : i + self.rows] for i in range(0, len(starts), self.rows)]

    def batch(self, epoch: int, indices: Indices) -> TextBatch:
        ends = np.minimum(indices + self.context, self.total - 1)
        windows = [self.text.ids[start : end + 1] for start, end in zip(indices, ends, strict=True)]
        tokens, _ = pad_sequences(windows)
        document_ids = None
        if len(self.text) > 1:
            positions = indices[:, None] + np.arange(tokens.shape[1] - 1)
            document_ids = torch.from_numpy(np.searchsorted(self.text.starts, positions, side="right"))
        return TextBatch(tokens[:, :-1], tokens[:, 1:], document_ids)


def train_text_tokenizer(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    sample_share: float,
    characters: float,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> Tokenizer:
    """Train a tokenizer on the first `characters` of running text: those not held out."""

    def texts(progress: ProgressCallback) -> Iterator[str]:
        left = characters
        for text, _ in read_documents(files, on_bad_line=on_bad_line, progress=progress):
            if left <= 0:
                return
            left -= len(text)
            yield text

    return train_tokenizer(texts, files, config, sample_share, start_progress)


def prepare_text(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    held_out: float,
    characters: int,
    sentences: bool = False,
    end: int = END,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> PreparedData:
    """Encode running text with `end` after each document, or open it if it is stored.

    A sequence is a document; or, with `sentences`, a sentence, and documents end at blank lines. `characters` is the
    length of the training files. Without validation files their last part is held out; not lines at random, whose
    neighbours would give them away.
    """
    files = [*train, *valid]
    settings: dict[str, Any] = {"kind": "sentences" if sentences else "text"} | ({} if end == END else {"end": end})
    folder = dataset_folder(files, (tokenizer,), **settings, split=[len(train), held_out])
    read = read_sentences if sentences else read_documents
    if not is_intact(folder):
        with new_dataset(folder, {"text": len(tokenizer)}, files, start_progress) as (writer, progress):
            train_characters = float("inf") if valid else characters * (1 - held_out)
            lines = read(train, on_bad_line=on_bad_line, dropped=writer.dropped, progress=progress)
            splits = writer.splits

            def split_at(position: int) -> SplitWriter:
                return splits["train" if position < train_characters else "valid"]

            _write_text(lines, split_at, tokenizer, end, sentences)
            if valid:
                lines = read(valid, on_bad_line=on_bad_line, progress=progress)
                _write_text(lines, lambda _: splits["valid"], tokenizer, end, sentences)
    return open_dataset(folder, (tokenizer,), ("text",))


def _write_text(
    lines: Iterator[tuple[str, bool]],
    split_at: Callable[[int], SplitWriter],
    tokenizer: Tokenizer,
    end: int,
    sentences: bool,
) -> None:
    """Append lines of documents to the split of their character position; each `sentence` is a sequence of its own."""
    position = 0
    for block in encoding_blocks(lines):
        texts = [text for text, _ in block]
        encoded = encode_sentences(texts, tokenizer) if sentences else tokenizer.encode(texts)
        for (text, is_last), ids in zip(block, encoded, strict=True):
            split = split_at(position)
            position += len(text)
            split.count(text, examples=int(is_last or sentences))
            split.sides[0].write([*ids, end] if is_last else ids)
            if is_last or sentences:
                split.sides[0].end()


def encode_sentences(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Encode consecutive sentences: one that begins with a blank gets no other one from the tokenizer."""
    continues = [text[:1].isspace() for text in texts]
    encoded = {}
    for is_continued in (False, True):
        chosen = [text for text, each in zip(texts, continues, strict=True) if each == is_continued]
        encoded[is_continued] = iter(tokenizer.encode(chosen, at_start=not is_continued))
    return [next(encoded[is_continued]) for is_continued in continues]
