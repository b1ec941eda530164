"""Batching: which examples go together, and in what order, as a pure function of (seed, epoch, index).

It does not depend on workers, world size or time: a resumed run, or one on more devices, sees the same batches
(T2, T3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Result = TypeVar("Result")
MAX_ROWS = 4096
"""Maximum number of examples in a batch."""


@runtime_checkable
class Batches(Protocol):
    """An epoch as a list of batches, each of which can be built from its indices alone."""

    fixed_shape: bool
    """Whether all batches but the last of an epoch have one shape, or one of very few."""
    unit: str
    """Unit of the labels, in the plural: tokens, examples."""

    @property
    def labels_per_epoch(self) -> int:
        """Number of labels to predict in an epoch."""

    def plan(self, epoch: int) -> list[Indices]:
        """The batches of an epoch, as indices of their examples."""

    def batch(self, epoch: int, indices: Indices) -> Any:
        """The tensors of one batch."""


def evenly_spaced_batches(batches: Batches, max_labels: int | None = None) -> list[Indices]:
    """The batches of the first epoch, or a fixed, evenly spaced selection with about `max_labels` labels.

    Evenly spaced, because the first of an unshuffled epoch are the shortest texts, or the beginning of a book.
    """
    plan = batches.plan(0)
    share = 1.0 if max_labels is None else max_labels / max(1, batches.labels_per_epoch)
    return [plan[index] for index in evenly_spaced(len(plan), max(1, round(share * len(plan))))]


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Indices of at most `limit` of `count` items, evenly spaced."""
    chosen = min(count, limit)
    return [(2 * i + 1) * count // (2 * chosen) for i in range(chosen)]


def evenly_split(count: int, chosen: int) -> tuple[list[int], list[int]]:
    """Indices of `chosen` of `count` items, evenly spaced, and those of the other items."""
    indices = evenly_spaced(count, chosen)
    return indices, sorted({*range(count)}.difference(indices))


class ScoringSample(NamedTuple):
    """The texts of a split that scores are computed on."""

    indices: list[int]
    held_out: list[int]
    """Positions in `indices` of texts that nothing was fitted on."""

    @classmethod
    def choose(cls, count: int, *, fitted: int = 0, share: float = 1.0) -> ScoringSample:
        """All of `count` texts, or an evenly spaced share of them, without the `fitted` ones (`evenly_split`)."""
        _, held_out = evenly_split(count, fitted)
        if share >= 1:
            return cls(list(range(count)), held_out)
        chosen = [held_out[index] for index in evenly_spaced(len(held_out), max(1, round(share * count)))]
        return cls(chosen, list(range(len(chosen))))


def length_buckets(lengths: npt.ArrayLike, max_tokens: int, *, longest_first: bool = False) -> list[Indices]:
    """Group examples of similar length into batches of at most `max_tokens` tokens with padding, or of one example.

    `lengths` holds one number per example, or sides × examples for source and target: a batch then has
    rows × (longest of each side, added up) tokens. Examples are sorted by their longest side, then the first, then
    the next: of the orders tried, the one with the least padding on all sides.
    """
    sizes = np.atleast_2d(np.asarray(lengths, np.int64))
    keys = np.vstack([sizes[::-1], sizes.max(0)])
    order = np.lexsort(-keys if longest_first else keys)
    sizes = sizes[:, order]
    buckets, start = [], 0
    while start < len(order):
        longest = np.maximum.accumulate(sizes[:, start : start + MAX_ROWS], axis=1).sum(0)
        fits = longest * np.arange(1, len(longest) + 1) <= max_tokens
        rows = max(1, len(fits) if fits.all() else int(fits.argmin()))
        buckets.append(order[start : start + rows])
        start += rows
    return buckets


def map_length_buckets(
    function: Callable[[list[int]], Iterable[Result]],
    lengths: npt.ArrayLike,
    max_tokens: int,
    *,
    longest_first: bool = False,
) -> list[Result]:
    """Call a function with the indices of each length bucket; returns its results in the order of the examples."""
    results: dict[int, Result] = {}
    for bucket in length_buckets(lengths, max_tokens, longest_first=longest_first):
        indices = bucket.tolist()
        results |= zip(indices, function(indices), strict=True)
    return [results[index] for index in range(len(results))]


class BucketedBatches:
    """Examples of similar length in batches of at most `max_tokens` tokens, padding included.

    Each epoch shuffles all examples, buckets large windows of the shuffled order by length, and shuffles the buckets.
    """

    bucket_window = 1 << 15
    fixed_shape = False

    def __init__(self, lengths: npt.NDArray[np.int64], *, max_tokens: int, seed: int, shuffle: bool) -> None:
        self.lengths = lengths
        """Tokens of each side of each example: sides × examples."""
        self.max_tokens, self.seed, self.shuffle = max_tokens, seed, shuffle

    def plan(self, epoch: int) -> list[Indices]:
        """The batches of an epoch, as indices of their examples."""
        generator = np.random.default_rng([self.seed, epoch])
        count = self.lengths.shape[1]
        order = generator.permutation(count) if self.shuffle else np.arange(count)
        batches: list[Indices] = []
        for start in range(0, count, self.bucket_window):
            window = order[start : start + self.bucket_window]
            batches += [window[bucket] for bucket in length_buckets(self.lengths[:, window], self.max_tokens)]
        return [batches[i] for i in generator.permutation(len(batches))] if self.shuffle else batches
