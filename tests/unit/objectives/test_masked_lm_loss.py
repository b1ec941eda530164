"""The masked-token and next-sentence loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import heedful
from heedful.data.masked_lm_batches import MaskedBatch
from heedful.objectives.masked_lm_loss import MaskedLMLoss, states_at
from heedful.objectives.objective import Objective
from heedful.text.special_tokens import PAD
from heedful.training.distributed.process_group import shard_rows

TASKS = ("masked_token", "next_sentence")


@pytest.fixture
def model() -> Any:
    return heedful.build("bert-tiny", vocabulary=30, width=16, layers=1, dropout=0.0, tasks=TASKS).eval()


def batch() -> MaskedBatch:
    places = torch.tensor([[1, 4, 2], [3, 0, 5]])
    return MaskedBatch(torch.randint(6, 30, (2, 7)), places, torch.tensor([[9, 8, PAD], [7, 21, 11]]))


def test_the_loss_is_the_cross_entropy_at_masked_positions(model: Any) -> None:
    examples = batch()
    logits = model.apply_head("masked_token", model(examples.tokens))
    wanted = torch.full_like(examples.tokens, PAD).scatter(1, examples.positions, examples.labels)
    expected = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="sum")
    objective = MaskedLMLoss()
    assert isinstance(objective, Objective)
    torch.testing.assert_close(objective.loss(model, examples), expected)
    assert objective.token_count(examples) == 5


def test_gradients_equal_those_through_all_logits(model: Any) -> None:
    examples = batch()
    MaskedLMLoss().loss(model, examples).backward()
    actual = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    logits = model.apply_head("masked_token", model(examples.tokens))
    wanted = torch.full_like(examples.tokens, PAD).scatter(1, examples.positions, examples.labels)
    F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="sum").backward()
    reference = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert actual.keys() == reference.keys()
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, reference[name], atol=1e-5, rtol=1e-4)


def test_the_next_sentence_loss_is_weighted_by_the_row_s_masked_tokens(model: Any) -> None:
    examples = batch()
    follows = torch.tensor([0, 1])
    segments = (torch.arange(7) > 3).long().expand(2, -1)
    paired = replace(examples, segments=segments, next_sentence_labels=follows)
    states = model(examples.tokens, segments=segments)
    first, second = F.cross_entropy(model.apply_head("next_sentence", states), follows, reduction="none")
    words = MaskedLMLoss().loss(model, replace(paired, next_sentence_labels=None))
    torch.testing.assert_close(MaskedLMLoss().loss(model, paired), words + 2 * first + 3 * second)


def test_shards_of_a_batch_sum_to_its_loss(model: Any) -> None:
    segments = (torch.arange(7) > 3).long().expand(2, -1)
    full = replace(batch(), segments=segments, next_sentence_labels=torch.tensor([0, 1]))
    shares = [shard_rows(full, rank, 3) for rank in range(3)]
    torch.testing.assert_close(
        sum(MaskedLMLoss().loss(model, share) for share in shares), MaskedLMLoss().loss(model, full)
    )
    assert sum(MaskedLMLoss().token_count(share) for share in shares) == MaskedLMLoss().token_count(full)


def test_states_at_selects_positions_of_each_row() -> None:
    states = torch.arange(24.0).view(2, 4, 3)
    actual = states_at(states, torch.tensor([[3, 0], [1, 1]]))
    assert torch.equal(actual, torch.stack([states[0, [3, 0]], states[1, [1, 1]]]))
