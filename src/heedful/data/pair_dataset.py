"""Sentence pairs for translation: tokenizers, dataset and batches (T2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_files import CorpusFiles
from heedful.data.corpus_readers import Pair, read_pairs
from heedful.data.dataset import DatasetWriter, PreparedData, prepare_dataset, train_tokenizer
from heedful.data.token_store import Ids, Sequences
from heedful.shapes import Int
from heedful.text.special_tokens import END, PAD, START
from heedful.text.subword_regularization import SubwordSplits
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


@dataclass(frozen=True)
class PairBatch:
    """Sources and targets, padded at the end."""

    ignore_index: ClassVar[int] = PAD

    source: Int[Tensor, "batch source_tokens"]
    source_lengths: Int[Tensor, " batch"]
    target: Int[Tensor, "batch target_tokens"]
    """The decoder's input: START, then the target."""
    labels: Int[Tensor, "batch target_tokens"]
    """The decoder's expected output: the target, then END; PAD is ignored."""


class PairBatches(BucketedBatches):
    """Pairs of similar length in batches of at most `max_tokens`, source and target added up."""

    unit = "tokens"

    def __init__(
        self,
        source: Sequences,
        target: Sequences,
        *,
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
        splits: tuple[SubwordSplits, SubwordSplits] | None = None,
        subword_dropout: float = 0.0,
    ) -> None:
        lengths = np.stack([source.lengths + 1, target.lengths + 1])  # END on both sides
        super().__init__(lengths, max_tokens=max_tokens, seed=seed, shuffle=shuffle)
        self.source, self.target = source, target
        self.splits, self.subword_dropout = splits, subword_dropout

    @property
    def labels_per_epoch(self) -> int:
        """Target tokens to predict in an epoch."""
        return int(self.lengths[1].sum())

    def batch(self, epoch: int, indices: Indices) -> PairBatch:
        """The tensors of one batch. Subword splits are sampled anew in every epoch."""
        sources, targets = (self._sequences(side, epoch, indices) for side in (0, 1))
        source, lengths = pad_sequences(sources, end=END)
        return PairBatch(source, lengths, pad_sequences(targets, start=START)[0], pad_sequences(targets, end=END)[0])

    def _sequences(self, side: int, epoch: int, indices: Indices) -> list[Ids]:
        stored = (self.source, self.target)[side]
        sequences = [stored[index] for index in indices.tolist()]
        if self.splits is None or not self.subword_dropout:
            return sequences
        # A pair is in one batch of an epoch, so a batch's first pair identifies it. One call for all: 90 times cheaper.
        generator = np.random.default_rng([self.seed, epoch, int(indices[0]), side])
        ids, counts = self.splits[side].split(np.concatenate(sequences), self.subword_dropout, generator)
        ends = np.cumsum([len(sequence) for sequence in sequences])
        return np.split(ids, np.concatenate([[0], np.cumsum(counts)])[ends[:-1]])


def train_pair_tokenizers(
    files: CorpusFiles, config: TokenizerConfig, sample_share: float, *, joint: bool
) -> tuple[Tokenizer, ...]:
    """Train one tokenizer for both sides, or one for each, without the held-out pairs."""

    def train(sides: slice) -> Tokenizer:
        def texts(pairs: Iterator[Pair]) -> Iterator[str]:
            for pair in pairs:
                if not files.holds_out(pair.source):
                    yield from (pair.source, pair.target)[sides]

        return train_tokenizer(files, config, sample_share, partial(read_pairs, columns=files.columns), texts)

    return (train(slice(0, 2)),) if joint else (train(slice(0, 1)), train(slice(1, 2)))


def prepare_pairs(files: CorpusFiles, tokenizers: tuple[Tokenizer, ...], *, max_length: int) -> PreparedData:
    """Encode pairs, or open them if they are stored. Without validation files, sources are held out by hash."""
    too_long = f"pairs longer than {max_length} tokens"

    def write(writer: DatasetWriter) -> None:
        for block in writer.blocks(
            partial(read_pairs, columns=files.columns), lambda pair: files.holds_out(pair.source)
        ):
            sources = tokenizers[0].encode([pair.source for pair, _ in block])
            targets = tokenizers[-1].encode([pair.target for pair, _ in block])
            for (pair, split), source, target in zip(block, sources, targets, strict=True):
                if max(len(source), len(target)) >= max_length:  # END takes a position too
                    writer.count_issue(writer.dropped, too_long, pair.line)
                else:
                    split.count(pair.target, pair.source, pair.target)
                    split.write(source, target)

    sides = {"source": len(tokenizers[0]), "target": len(tokenizers[-1])}
    return prepare_dataset(
        files, tokenizers, sides, write, kind="pairs", max_length=max_length, columns=list(files.columns)
    )
