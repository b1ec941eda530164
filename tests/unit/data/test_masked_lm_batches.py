"""Masked-LM batches: full windows, deterministic by seed, epoch and index."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from heedful.data.batching import Batches
from heedful.data.masked_lm_batches import SHORT_BATCHES, MaskedBatches
from heedful.data.masking import Masking
from heedful.data.token_store import Sequences
from heedful.text.special_tokens import PAD, SEPARATOR, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TOKENIZER = Tokenizer.train(["abcdefghijklmnop"], TokenizerConfig(kind="characters", vocabulary=40))
TEXT = Sequences.from_lists([[6 + (i * j) % 16 for j in range(50 + i)] + [SEPARATOR] for i in range(12)])


def batches(text: Sequences = TEXT, context: int = 20, rows: int = 4, **settings: bool | int) -> MaskedBatches:
    arguments = {"context": context, "rows": rows, "seed": 1, **settings}
    return MaskedBatches(text, Masking(TOKENIZER), **arguments)  # type: ignore[arg-type]


def restored(tokens: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    original = torch.where(labels == PAD, tokens.gather(1, positions), labels)
    return tokens.scatter(1, positions, original)


def test_unshuffled_windows_cover_the_text() -> None:
    ids: list[int] = []
    train = batches(shuffle=False)
    assert isinstance(train, Batches)
    for indices in train.plan(0):
        batch = train.batch(0, indices)
        rows = restored(batch.tokens, batch.positions, batch.labels).tolist()
        lengths = [len(row) for row in rows] if batch.lengths is None else batch.lengths.tolist()
        for row, length in zip(rows, lengths, strict=True):
            assert (row[0], row[length - 1]) == (START, SEPARATOR)
            assert set(row[length:]) <= {PAD}
            ids += row[1 : length - 1]
    assert ids == TEXT.ids.tolist()


def test_training_windows_have_few_shapes_no_padding_and_no_overlap() -> None:
    train = batches(rows=1)
    starts = [int(start) for indices in train.plan(0) for start in indices]
    assert (np.diff(sorted(starts)) == 18).all()
    assert train.labels_per_epoch == pytest.approx(3 * len(starts), rel=0.05)
    shapes: Counter[tuple[int, ...]] = Counter()
    for epoch in range(20):
        for indices in train.plan(epoch):
            batch = train.batch(epoch, indices)
            assert batch.lengths is None
            assert batch.segments is None
            assert (batch.tokens[:, 0] == START).all()
            assert (batch.tokens[:, -1] == SEPARATOR).all()
            shapes[(*batch.tokens.shape, batch.labels.shape[1])] += 1
    assert shapes.keys() == {(1, 20, 3), (2, 10, 2)}, "windows, and some in halves"
    assert shapes[2, 10, 2] / shapes.total() == pytest.approx(SHORT_BATCHES, abs=0.05)


def test_windows_and_masks_depend_on_seed_and_epoch_alone() -> None:
    first, same, other = batches(), batches(), batches(seed=2)
    plan = first.plan(3)
    assert [indices.tolist() for indices in plan] == [indices.tolist() for indices in same.plan(3)]
    for indices in reversed(plan):  # in any order, by any worker
        one, again = first.batch(3, indices), same.batch(3, indices)
        assert torch.equal(one.tokens, again.tokens)
        assert torch.equal(one.labels, again.labels)
    assert not torch.equal(first.batch(3, plan[0]).tokens, first.batch(4, plan[0]).tokens)
    assert not torch.equal(first.batch(3, plan[0]).tokens, other.batch(3, plan[0]).tokens)


def test_text_shorter_than_a_window_is_one_window() -> None:
    train = batches(Sequences.from_lists([[7, 8, 9, 10, SEPARATOR]]))
    (indices,) = train.plan(0)
    batch = train.batch(0, indices)
    assert batch.tokens.shape == (1, 7)
    assert batch.labels.shape == (1, 1)
