"""The loss of predicting tokens by their frequency."""

from __future__ import annotations

import math

import pytest

from heedful.data.token_store import Sequences
from heedful.evaluation.baselines import unigram_loss


def test_unigram_loss_is_the_cross_entropy_of_smoothed_frequencies() -> None:
    train, held_out = Sequences.from_lists([[0, 0, 0, 1]]), Sequences.from_lists([[0, 1, 2, 2]])
    expected = -(math.log(4 / 7) + math.log(2 / 7) + 2 * math.log(1 / 7)) / 4
    assert unigram_loss(train, held_out, 3) == pytest.approx(expected)
    with_end = -(math.log(4 / 9) + math.log(2 / 9) + 2 * math.log(1 / 9) + math.log(2 / 9)) / 5
    assert unigram_loss(train, held_out, 3, ends=True) == pytest.approx(with_end)
