"""Batches: every example once per epoch, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.batching import evenly_spaced, evenly_spaced_batches, length_buckets
from heedful.data.pair_dataset import PairBatches
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.text.special_tokens import END, PAD, START
from heedful.text.subword_regularization import SubwordSplits
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


def _sequences(lengths: list[int], first: int = 6) -> Sequences:
    return Sequences.from_lists([[first + (i + j) % 50 for j in range(length)] for i, length in enumerate(lengths)])


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=200)


@settings(max_examples=25, deadline=None)
@given(lengths, st.integers(0, 5), st.integers(0, 3))
def test_every_pair_is_in_one_batch_within_max_tokens(sizes: list[int], seed: int, epoch: int) -> None:
    sides = _sequences(sizes), _sequences(sizes[::-1])
    batches = PairBatches(*sides, max_tokens=128, seed=seed)
    plan = batches.plan(epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(sizes)))
    for indices in plan:
        batch = batches.batch(epoch, indices)
        assert len(indices) == 1 or batch.source.numel() + batch.target.numel() <= 128


def test_evenly_spaced_batches_cover_the_epoch_up_to_max_labels() -> None:
    batches = TextBatches(_sequences([1000]), context=10, rows=2, seed=0, shuffle=False)
    chosen = [int(indices[0]) for indices in evenly_spaced_batches(batches, 200)]
    assert chosen == [40, 140, 240, 340, 440, 540, 640, 740, 840, 940]
    assert len(evenly_spaced_batches(batches)) == len(evenly_spaced_batches(batches, 10_000)) == len(batches.plan(0))
    assert len(evenly_spaced_batches(batches, 1)) == 1


@given(st.integers(0, 50), st.integers(1, 60))
def test_evenly_spaced_indices_are_distinct_and_sorted(count: int, limit: int) -> None:
    chosen = evenly_spaced(count, limit)
    assert len(chosen) == min(count, limit)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(count))
    assert len(set(np.diff(chosen).tolist())) <= 2, "no gap is more than one wider than another"


def test_order_depends_on_seed_and_epoch_alone() -> None:
    sides = _sequences([3, 5, 7, 9] * 20), _sequences([4, 6, 8, 2] * 20)

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [indices.tolist() for indices in PairBatches(*sides, max_tokens=64, seed=seed).plan(epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_subword_dropout_keeps_the_text_and_depends_on_seed_and_epoch_alone() -> None:
    lines = [f"the {number} cats sat on mats together, counting {number}" for number in range(60)]
    tokenizer = Tokenizer.train(lines, TokenizerConfig(vocabulary=400))
    side = Sequences.from_lists(tokenizer.encode(lines))
    table = SubwordSplits(tokenizer)

    def read(seed: int, epoch: int) -> dict[int, list[list[int]]]:
        batches = PairBatches(side, side, max_tokens=500, seed=seed, splits=(table, table), subword_dropout=0.3)
        sequences: dict[int, list[list[int]]] = {}
        for indices in reversed(batches.plan(epoch)):
            batch = batches.batch(epoch, indices)
            for index, source, labels in zip(
                indices.tolist(), batch.source.tolist(), batch.labels.tolist(), strict=True
            ):
                sequences[index] = [source[: source.index(END)], labels[: labels.index(END)]]
        return sequences

    once = read(1, 0)
    assert once == read(1, 0)
    assert once != read(1, 1)
    assert once != read(2, 0)
    assert sorted(once) == list(range(60))
    for index, (source, target) in once.items():
        assert tokenizer.decode([source, target]) == [lines[index]] * 2
    assert any(source != target for source, target in once.values()), "the sides are sampled independently"
    assert sum(len(source) for source, _ in once.values()) > 1.1 * len(side.ids)


def test_targets_are_shifted_and_end_with_end() -> None:
    batches = PairBatches(
        Sequences.from_lists([[7, 8], [9]]),
        Sequences.from_lists([[10], [11, 12]]),
        max_tokens=99,
        seed=0,
        shuffle=False,
    )
    batch = batches.batch(0, np.array([0, 1]))
    assert batch.source.tolist() == [[7, 8, END], [9, END, PAD]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target.tolist() == [[START, 10, PAD], [START, 11, 12]]
    assert batch.labels.tolist() == [[10, END, PAD], [11, 12, END]]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 300), st.integers(1, 40), st.integers(1, 5))
def test_windows_cover_running_text_without_overlap(total: int, context: int, rows: int) -> None:
    text = Sequences.from_lists([list(range(100, 100 + total))])
    batches = TextBatches(text, context=context, rows=rows, seed=0, shuffle=False)
    labels = [
        int(label) for plan in batches.plan(0) for label in batches.batch(0, plan).labels.flatten() if label != PAD
    ]
    assert labels == list(range(101, 100 + total))


def test_shuffled_windows_get_a_new_offset_each_epoch_and_never_overlap() -> None:
    text = Sequences.from_lists([list(range(100, 1100))])
    batches = TextBatches(text, context=32, rows=4, seed=0)
    firsts = []
    for epoch in range(4):
        starts = sorted(np.concatenate(batches.plan(epoch)).tolist())
        assert all(later - earlier == 32 for earlier, later in pairwise(starts))
        firsts.append(starts[0])
    assert len(set(firsts)) > 1


def test_document_ids_separate_the_documents_of_a_window() -> None:
    text = Sequences.from_lists([[7, 8, END], [9, 10, 11, END], [12, END]])
    batches = TextBatches(text, context=8, rows=1, seed=0, shuffle=False)
    batch = batches.batch(0, batches.plan(0)[0])
    assert batch.document_ids is not None
    assert batch.document_ids[0].diff().tolist() == [0, 0, 1, 0, 0, 0, 1]


def test_padding_is_under_eight_percent_on_captions(corpora: Path) -> None:
    """Multi30k, lengths in words: close enough to tokens for the share of padding."""
    sides = [
        Sequences.from_lists(
            [[6] * len(line.split()) for line in (corpora / f"multi30k/train.{language}").read_text().splitlines()]
        )
        for language in ("en", "de")
    ]
    batches = PairBatches(sides[0], sides[1], max_tokens=8192, seed=1)
    made = [batches.batch(0, indices) for indices in batches.plan(0)]
    total = sum(batch.source.numel() + batch.labels.numel() for batch in made)
    real = sum(int(batch.source_lengths.sum()) + int((batch.labels != PAD).sum()) for batch in made)
    assert 1 - real / total < 0.08


@pytest.mark.parametrize("rows", [1, 3])
def test_tensors_are_int64_of_one_shape(rows: int) -> None:
    batches = TextBatches(_sequences([200]), context=16, rows=rows, seed=0)
    shapes = {batches.batch(0, plan).tokens.shape[1] for plan in batches.plan(0)}
    assert shapes == {16}
    assert batches.batch(0, batches.plan(0)[0]).tokens.dtype == torch.long


@given(lengths=st.lists(st.integers(1, 40), max_size=50), max_tokens=st.integers(0, 200), longest_first=st.booleans())
def test_length_buckets_are_sorted_and_as_large_as_max_tokens_allows(
    lengths: list[int], max_tokens: int, longest_first: bool
) -> None:
    buckets = [bucket.tolist() for bucket in length_buckets(lengths, max_tokens, longest_first=longest_first)]
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index] if longest_first else lengths[index])
    assert [index for bucket in buckets for index in bucket] == order
    for bucket in buckets:
        assert len(bucket) == 1 or len(bucket) * max(lengths[index] for index in bucket) <= max_tokens
    for bucket, following in pairwise(buckets):
        longer = [*bucket, following[0]]
        assert len(longer) * max(lengths[index] for index in longer) > max_tokens
