"""Running text for language models: tokenizer, dataset and batches (T3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_files import CorpusFiles
from heedful.data.corpus_readers import read_documents, read_sentences
from heedful.data.dataset import DatasetWriter, PreparedData, prepare_dataset, train_tokenizer
from heedful.data.token_store import Sequences
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

    def __init__(self, text: Sequences, *, context: int, rows: int, seed: int, shuffle: bool = True) -> None:
        self.text, self.context, self.rows = text, context, rows
        self.seed, self.shuffle = seed, shuffle
        self.total = len(text.ids)

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
    files: CorpusFiles, config: TokenizerConfig, sample_share: float, *, characters: int
) -> Tokenizer:
    """Train a tokenizer on running text, of which `characters` are in the training files, without its held-out part."""

    def texts(lines: Iterator[tuple[str, bool]]) -> Iterator[str]:
        left = characters * (1 - files.held_out_share)
        for text, _ in lines:
            if left <= 0:
                return
            left -= len(text)
            yield text

    return train_tokenizer(files, config, sample_share, partial(read_documents, columns=files.columns), texts)


def prepare_text(
    files: CorpusFiles, tokenizer: Tokenizer, *, characters: int, sentences: bool = False, end: int = END
) -> PreparedData:
    """Encode running text with `end` after each document, or open it if it is stored.

    A sequence is a document; or, with `sentences`, a sentence, and documents end at blank lines. `characters` is the
    length of the training files. Without validation files their last part is held out; not lines at random, whose
    neighbors would give them away.
    """

    def write(writer: DatasetWriter) -> None:
        position, limit = 0, float("inf") if files.valid else characters * (1 - files.held_out)

        def is_held_out(line: tuple[str, bool]) -> bool:
            nonlocal position
            position += len(line[0])
            return position - len(line[0]) >= limit

        read = partial(read_sentences if sentences else read_documents, columns=files.columns)
        for block in writer.blocks(read, is_held_out):
            texts = [text for (text, _), _ in block]
            encoded = encode_sentences(texts, tokenizer) if sentences else tokenizer.encode(texts)
            for ((text, is_last), split), ids in zip(block, encoded, strict=True):
                split.count(text, examples=int(is_last or sentences))
                split.sides[0].write([*ids, end] if is_last else ids)
                if is_last or sentences:
                    split.sides[0].end()

    settings: dict[str, Any] = {"kind": "sentences" if sentences else "text", "columns": list(files.columns)}
    settings |= {} if end == END else {"end": end}
    return prepare_dataset(files, (tokenizer,), {"text": len(tokenizer)}, write, **settings)


def encode_sentences(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Encode consecutive sentences: one that begins with a blank gets no other one from the tokenizer."""
    continues = [text[:1].isspace() for text in texts]
    encoded = {}
    for is_continued in (False, True):
        chosen = [text for text, flag in zip(texts, continues, strict=True) if flag == is_continued]
        encoded[is_continued] = iter(tokenizer.encode(chosen, at_start=not is_continued))
    return [next(encoded[is_continued]) for is_continued in continues]
