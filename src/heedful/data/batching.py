"""Which examples go together, and in what order: a pure function of (seed, epoch, index).

Never of workers, world size or wall clock: a resumed run, or the same run on more devices, sees the
same batches (T2, T3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.collate import pad_sequences
from heedful.data.token_store import Ids, Sequences
from heedful.shapes import Int
from heedful.text.special_tokens import END, PAD, START
from heedful.text.subword_regularization import SplitTable

Indices = npt.NDArray[np.int64]
LONGEST_BATCH = 4096
"""Examples in a batch, at most."""


@dataclass(frozen=True)
class PairBatch:
    """Source and target side by side, padded at the end."""

    ignore_index: ClassVar[int] = PAD

    source: Int[Tensor, "batch source_tokens"]
    source_lengths: Int[Tensor, " batch"]
    target: Int[Tensor, "batch target_tokens"]
    """Starts with START: what the decoder reads."""
    labels: Int[Tensor, "batch target_tokens"]
    """Ends with END: what it should write; PAD where there is nothing to learn."""

    @property
    def padding(self) -> tuple[int, int]:
        """(padding, all) tokens."""
        real = int(self.source_lengths.sum()) + int((self.labels != PAD).sum())
        return self.source.numel() + self.labels.numel() - real, self.source.numel() + self.labels.numel()


@dataclass(frozen=True)
class TextBatch:
    """Windows of running text; each token's label is the token after it."""

    ignore_index: ClassVar[int] = PAD

    tokens: Int[Tensor, "batch tokens"]
    labels: Int[Tensor, "batch tokens"]
    document_ids: Int[Tensor, "batch tokens"] | None = None
    """Which document of its row each token belongs to; None where a row can hold only one."""


@runtime_checkable
class Batches(Protocol):
    """An epoch as a list of batches, each of which can be made from its numbers alone."""

    fixed_shape: bool
    """Whether they are all of one shape, or of very few, but for the last of an epoch."""
    unit: str
    """What their labels are, in the plural: tokens, examples."""

    @property
    def labels_per_epoch(self) -> int:
        """Labels to be predicted in an epoch."""

    def plan(self, epoch: int) -> list[Indices]:
        """What goes into each batch of the epoch."""

    def batch(self, epoch: int, indices: Indices) -> Any:
        """The tensors of one batch."""


def evenly_spaced_batches(batches: Batches, max_labels: int | None = None) -> list[Indices]:
    """The first epoch's batches; or so many that they have about `most` labels, the same ones each time, from all over
    it: unshuffled, the first ones would be the shortest texts, or the beginning of a book."""
    plan = batches.plan(0)
    share = 1.0 if max_labels is None else max_labels / max(1, batches.labels_per_epoch)
    return [plan[place] for place in evenly_spaced(len(plan), max(1, round(share * len(plan))))]


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Places of `most` out of a `number` of things, or of all: always the same, and from all over them."""
    chosen = min(count, limit)
    return [(2 * i + 1) * count // (2 * chosen) for i in range(chosen)]


def length_buckets(lengths: npt.ArrayLike, max_tokens: int, *, longest_first: bool = False) -> list[Indices]:
    """Group examples of similar length into batches of at most `max_tokens` tokens with padding, or of one example.

    `lengths` holds one number per example, or sides × examples for source and target: a batch then has
    rows × (longest of each side, added up) tokens. Examples are sorted by their longest side, then the first, then
    the next, which of the orders tried gave the least padding on all sides.
    """
    sizes = np.atleast_2d(np.asarray(lengths, np.int64))
    keys = np.vstack([sizes[::-1], sizes.max(0)])
    order = np.lexsort(-keys if longest_first else keys)
    sizes = sizes[:, order]
    buckets, start = [], 0
    while start < len(order):
        widest = np.maximum.accumulate(sizes[:, start : start + LONGEST_BATCH], axis=1).sum(0)
        fits = widest * np.arange(1, len(widest) + 1) <= max_tokens
        rows = max(1, len(fits) if fits.all() else int(fits.argmin()))
        buckets.append(order[start : start + rows])
        start += rows
    return buckets


class BucketedBatches:
    """Examples of like length together, as many as fit the token budget.

    Each epoch shuffles all examples, sorts large neighbourhoods of the shuffled order by length, cuts
    them where rows × (the longest of each side, added up) would pass the budget, and shuffles the cuts.
    """

    neighbourhood = 1 << 15
    fixed_shape = False

    def __init__(self, sizes: npt.NDArray[np.int64], *, max_tokens: int, seed: int, shuffle: bool) -> None:
        self.lengths = sizes
        """Tokens of each side of each example: sides × examples."""
        self.tokens, self.seed, self.shuffle = max_tokens, seed, shuffle

    def plan(self, epoch: int) -> list[Indices]:
        """The epoch's batches, each a list of the numbers of examples."""
        draw = np.random.default_rng([self.seed, epoch])
        number = self.lengths.shape[1]
        order = draw.permutation(number) if self.shuffle else np.arange(number)
        cuts: list[Indices] = []
        for start in range(0, len(order), self.neighbourhood):
            shuffled = order[start : start + self.neighbourhood]
            cuts += [shuffled[bucket] for bucket in length_buckets(self.lengths[:, shuffled], self.tokens)]
        return [cuts[i] for i in draw.permutation(len(cuts))] if self.shuffle else cuts


class PairBatches(BucketedBatches):
    """Pairs of like length together."""

    unit = "tokens"

    def __init__(
        self,
        source: Sequences,
        target: Sequences,
        *,
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
        splits: tuple[SplitTable, SplitTable] | None = None,
        subword_dropout: float = 0.0,
    ) -> None:
        sizes = np.stack([source.lengths + 1, target.lengths + 1])  # END on both sides
        super().__init__(sizes, max_tokens=max_tokens, seed=seed, shuffle=shuffle)
        self.source, self.target = source, target
        self.splits, self.subword_dropout = splits, subword_dropout

    @property
    def labels_per_epoch(self) -> int:
        """Tokens to be predicted in an epoch."""
        return int(self.lengths[1].sum())

    def batch(self, epoch: int, indices: Indices) -> PairBatch:
        """The tensors of one cut. Subword splits are drawn afresh in every epoch."""
        sources, targets = (self._sequences(side, epoch, indices) for side in (0, 1))
        source, lengths = pad_sequences(sources, end=END)
        return PairBatch(source, lengths, pad_sequences(targets, start=START)[0], pad_sequences(targets, end=END)[0])

    def _sequences(self, side: int, epoch: int, indices: Indices) -> list[Ids]:
        stored = (self.source, self.target)[side]
        whole = [stored[index] for index in indices.tolist()]
        if self.splits is None or not self.subword_dropout:
            return whole
        # A pair stands in one cut of an epoch, so its first pair names a cut. All of it at once: 90 times cheaper.
        draw = np.random.default_rng([self.seed, epoch, int(indices[0]), side])
        ids, counts = self.splits[side].split_with_counts(np.concatenate(whole), self.subword_dropout, draw)
        ends = np.cumsum([len(sequence) for sequence in whole])
        return np.split(ids, np.concatenate([[0], np.cumsum(counts)])[ends[:-1]])


class TextBatches:
    """Every token once an epoch, in windows of `context` tokens that start elsewhere each time."""

    fixed_shape = True
    unit = "tokens"

    def __init__(
        self, text: Sequences, *, context: int, rows: int, seed: int, shuffle: bool = True, tokens: int | None = None
    ) -> None:
        self.text, self.context, self.rows = text, context, rows
        self.seed, self.shuffle = seed, shuffle
        self.many = len(text) > 1
        self.total = len(text.ids) if tokens is None else min(tokens, len(text.ids))

    @property
    def labels_per_epoch(self) -> int:
        """Tokens to be predicted in an epoch: all but the first."""
        return self.total - 1

    def plan(self, epoch: int) -> list[Indices]:
        """The epoch's batches, each a list of window starts."""
        draw = np.random.default_rng([self.seed, epoch])
        context = min(self.context, self.total - 1)
        shift = int(draw.integers(min(context, self.total - context))) if self.shuffle else 0
        starts = np.arange(shift, self.total - 1, context)
        if self.shuffle:  # whole windows only, so that every batch has one shape
            starts = draw.permutation(starts[starts + context < self.total])
        return [starts[i : i + self.rows] for i in range(0, len(starts), self.rows)]

    def batch(self, epoch: int, indices: Indices) -> TextBatch:
        ends = np.minimum(indices + self.context, self.total - 1)
        rows = [self.text.ids[start : end + 1] for start, end in zip(indices, ends, strict=True)]
        tokens, _ = pad_sequences(rows)
        documents = None
        if self.many:
            places = indices[:, None] + np.arange(tokens.shape[1] - 1)
            documents = torch.from_numpy(np.searchsorted(self.text.starts, places, side="right"))
        return TextBatch(tokens[:, :-1], tokens[:, 1:], documents)
