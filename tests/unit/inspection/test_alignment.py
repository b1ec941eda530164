"""Alignment: the head that looks where the answer is, found by measurement."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.inspection.alignment import Head, best_head, cross_weights, weight_on_spans


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_rows_are_target_tokens_columns_source_tokens_and_each_row_sums_to_one(name: str) -> None:
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 2}
    model = heedful.build(name, vocabulary=30, **size).eval()
    for weights in cross_weights(model, [7, 8, 9], [10, 11]).values():
        assert weights.shape[1:] == (3, 4)  # two words and the end; three words and the end
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_the_head_that_reads_the_right_span_wins() -> None:
    """One head is made to look straight at the source token that the target token came from."""
    model = heedful.build("laptop-translator", vocabulary=30, width=16, heads=2, layers=2).eval()
    source, target = [7, 8, 9], [10, 11, 12]

    def straight(weights: torch.Tensor) -> torch.Tensor:
        made = weights.clone()
        made[:, 1] = torch.eye(4)
        return made

    links = [(range(i, i + 1), range(i, i + 1)) for i in range(3)]
    with heedful.replace(model, {"decoder.1.cross.weights": straight}):
        scores = weight_on_spans(model, [(source, target, links)])
    head, weight = best_head(scores)
    assert head == Head("decoder.1.cross.weights", 1)
    assert weight == pytest.approx(1.0)
    assert len(scores) == 4
