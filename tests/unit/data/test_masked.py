"""Windows with hidden words: nothing lost, nothing padded, the same from seed, epoch and index."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.data.batches import Batches
from heedful.data.masked import MaskedBatches
from heedful.data.masking import Masking
from heedful.data.store import Sequences
from heedful.text.frame import Frame
from heedful.text.special import PAD, SEPARATOR, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TOKENIZER = Tokenizer.train(["abcdefghijklmnop"], TokenizerConfig(kind="characters", vocabulary=40))
TEXT = Sequences.of([[6 + (i * j) % 16 for j in range(50 + i)] + [SEPARATOR] for i in range(12)])


def batches(text: Sequences = TEXT, context: int = 20, rows: int = 4, **settings: bool | int) -> MaskedBatches:
    given = {"context": context, "rows": rows, "seed": 1, **settings}
    return MaskedBatches(text, Masking(TOKENIZER), Frame(), **given)  # type: ignore[arg-type]


def restored(tokens: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    stood = torch.where(labels == PAD, tokens.gather(1, places), labels)
    return tokens.scatter(1, places, stood)


def test_unshuffled_windows_are_the_text_from_end_to_end() -> None:
    found: list[int] = []
    given = batches(shuffle=False)
    assert isinstance(given, Batches)
    for indices in given.plan(0):
        batch = given.batch(0, indices)
        rows = restored(batch.tokens, batch.places, batch.labels).tolist()
        lengths = [20] * len(rows) if batch.lengths is None else batch.lengths.tolist()
        for row, length in zip(rows, lengths, strict=True):
            assert (row[0], row[length - 1]) == (START, SEPARATOR)
            assert set(row[length:]) <= {PAD}
            found += row[1 : length - 1]
    assert found == TEXT.ids.tolist()


def test_training_windows_have_one_shape_no_padding_and_overlap_nowhere() -> None:
    given = batches()
    shapes, starts = set(), []
    for indices in given.plan(0):
        batch = given.batch(0, indices)
        assert batch.lengths is None
        assert batch.segments is None
        shapes |= {(batch.tokens.shape[1], batch.labels.shape[1])} | ({len(indices)} if len(indices) == 4 else set())
        starts += indices.tolist()
    assert shapes == {(20, 3), 4}
    assert (np.diff(sorted(starts)) == 18).all()
    assert given.labels == pytest.approx(3 * len(starts), rel=0.05)


def test_windows_and_masks_are_drawn_anew_each_epoch_and_again_from_the_same_numbers() -> None:
    first, same, other = batches(), batches(), batches(seed=2)
    plan = first.plan(3)
    assert [indices.tolist() for indices in plan] == [indices.tolist() for indices in same.plan(3)]
    for indices in reversed(plan):  # in any order, by any worker
        ours, theirs = first.batch(3, indices), same.batch(3, indices)
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.labels, theirs.labels)
    assert not torch.equal(first.batch(3, plan[0]).tokens, first.batch(4, plan[0]).tokens)
    assert not torch.equal(first.batch(3, plan[0]).tokens, other.batch(3, plan[0]).tokens)


def test_a_text_shorter_than_a_window_is_one_window() -> None:
    given = batches(Sequences.of([[7, 8, 9, 10, SEPARATOR]]))
    (indices,) = given.plan(0)
    batch = given.batch(0, indices)
    assert batch.tokens.shape == (1, 7)
    assert batch.labels.shape == (1, 1)
