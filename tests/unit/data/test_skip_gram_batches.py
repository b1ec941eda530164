"""Skip-gram batches: context windows, subsampling and negative samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.data.skip_gram_batches import SkipGramBatches, count_words, keep_probabilities, negative_sampling_table
from heedful.data.token_store import Sequences
from heedful.errors import DataError
from heedful.objectives.skip_gram_loss import window_weights
from heedful.text.special_tokens import END, SPECIAL_TOKENS, UNKNOWN

FIRST = len(SPECIAL_TOKENS)


def batches(
    documents: list[list[int]], *, subsample: float = 0.0, window: int = 3, words: int = 1000
) -> SkipGramBatches:
    text = Sequences.from_lists([[*document, END] for document in documents])
    counts = count_words(text, 200)
    return SkipGramBatches(text, counts, words=words, window=window, subsample=subsample, seed=5)


def pairs(made: SkipGramBatches, epoch: int = 0) -> dict[tuple[int, int], float]:
    """The total weight of every (word, neighbor) pair of an epoch."""
    weights: dict[tuple[int, int], float] = {}
    for indices in made.plan(epoch):
        batch = made.batch(epoch, indices)
        near = window_weights(batch)
        for row, other, position in near.nonzero().tolist():
            pair = int(batch.words[row, position]), int(batch.context[row, other])
            weights[pair] = weights.get(pair, 0.0) + float(near[row, other, position])
    return weights


def test_pairs_are_weighted_as_with_a_random_window_size() -> None:
    text = list(range(FIRST, FIRST + 100))  # every word once, so that a pair tells its distance
    weights = pairs(batches([text], window=3))
    expected = {
        (one, other): sum(abs(one - other) <= reach for reach in (1, 2, 3)) / 3
        for one in text
        for other in text
        if 0 < abs(one - other) <= 3  # never itself, and also across the rows of a batch
    }
    assert weights == pytest.approx(expected)


def test_windows_do_not_cross_documents() -> None:
    weights = pairs(batches([[10, 11, 12], [20, 21, 22]]))
    assert (10, 11) in weights
    assert all((one < 20) == (other < 20) for one, other in weights)


def test_unknown_words_are_skipped() -> None:
    assert (10, 11) in pairs(batches([[10, UNKNOWN, UNKNOWN, UNKNOWN, 11, 12]]))


def test_batch_depends_on_seed_epoch_and_index_alone() -> None:
    text = [np.random.default_rng(0).integers(FIRST, 200, 3000).tolist()]
    one, other = batches(text, words=256), batches(text, words=256)
    plan = one.plan(3)
    assert [int(start[0]) for start in plan] == [int(start[0]) for start in other.plan(3)]
    assert [int(start[0]) for start in plan] != [int(start[0]) for start in one.plan(4)]
    last, first = one.batch(3, plan[-1]), one.batch(3, plan[0])
    assert not torch.equal(first.negatives, last.negatives)
    again = other.batch(3, plan[-1])  # without having made the others
    for name in ("words", "context", "document_ids", "negatives"):
        assert torch.equal(getattr(last, name), getattr(again, name))


def test_subsampling_follows_the_formula_and_keeps_rare_words() -> None:
    counts = np.zeros(100, np.int64)
    counts[[10, 11]] = [9000, 1000]
    kept = keep_probabilities(counts, 0.01)
    assert kept[10] == pytest.approx((0.01 / 0.9) ** 0.5 + 0.01 / 0.9)
    assert kept[11] == pytest.approx((0.01 / 0.1) ** 0.5 + 0.01 / 0.1)
    assert keep_probabilities(counts, 0.2)[11] == 1
    assert kept[UNKNOWN] == kept[50] == 0
    assert keep_probabilities(counts, 0.0)[10] == 1

    text = np.random.default_rng(1).permutation([10] * 9000 + [11] * 1000).tolist()
    made = batches([text], subsample=0.01, words=20_000)
    batch = made.batch(0, made.plan(0)[0])
    assert int((batch.words == 10).sum()) == pytest.approx(9000 * kept[10], rel=0.1)


def test_negatives_are_drawn_by_frequency_to_the_three_quarters() -> None:
    counts = np.zeros(50, np.int64)
    counts[[10, 20]] = [16, 1]
    table = negative_sampling_table(counts)
    assert set(table.tolist()) == {10, 20}
    assert (table == 10).mean() == pytest.approx(8 / 9, abs=1e-4)


def test_text_of_one_word_raises_data_error() -> None:
    with pytest.raises(DataError, match=r"fewer than two different words .* put spaces between its words"):
        batches([[10, 10, UNKNOWN]])
