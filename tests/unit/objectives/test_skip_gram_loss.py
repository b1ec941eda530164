"""The skip-gram loss equals the paper's sum over pairs and negatives."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import logsigmoid

import heedful
from heedful.data.skip_gram_batches import SkipGramBatch, SkipGramBatches, count_words
from heedful.data.token_store import Sequences
from heedful.models.model_config import WordVectorsConfig
from heedful.objectives.objective import Objective
from heedful.objectives.skip_gram_loss import SkipGramLoss, window_weights
from heedful.text.special_tokens import END
from heedful.training.optim.row_adagrad import RowAdaGrad

TEXT = np.random.default_rng(0).integers(6, 40, 150).tolist()


def made() -> tuple[torch.nn.Module, SkipGramBatch]:
    text = Sequences.from_lists([TEXT])
    batches = SkipGramBatches(text, count_words(text, 60), words=1000, window=4, subsample=0.0, seed=1)
    model = heedful.build(WordVectorsConfig(family="word_vectors", vocabulary=60, width=8))
    torch.nn.init.normal_(model.table.weight)
    torch.nn.init.normal_(model.context.weight)
    torch.nn.init.normal_(model.order.weight)
    return model, batches.batch(0, batches.plan(0)[0])


def test_the_loss_is_the_sum_over_pairs_and_their_negatives() -> None:
    model, batch = made()
    v, u, s = model.table.weight, model.context.weight, model.order.weight
    expected = torch.zeros(())
    near = window_weights(batch)
    share = 5 / batch.negatives.shape[1]  # five negatives per pair, spread over all of the row
    for row, other, position in near.nonzero().tolist():
        w = v[batch.words[row, position]]
        positive, negative = u[batch.context[row, other]] @ w, u[batch.negatives[row]] @ w
        side = s[batch.context[row, other]] @ w * (1 if other < position + 4 else -1)  # 4 is the window
        expected -= near[row, other, position] * (
            logsigmoid(positive) + share * logsigmoid(-negative).sum() + logsigmoid(side)
        )
    torch.testing.assert_close(SkipGramLoss(5).loss(model, batch), expected, rtol=1e-4, atol=1e-3)


def test_without_word_order_the_loss_is_word2vec_s() -> None:
    with_order, batch = made()
    config = WordVectorsConfig(family="word_vectors", vocabulary=60, width=8, word_order=False)
    plain = heedful.build(config)
    assert plain.order is None
    plain.load_state_dict({name: w for name, w in with_order.state_dict().items() if not name.startswith("order")})
    torch.nn.init.zeros_(with_order.order.weight)
    pairs = window_weights(batch).sum()  # each costs log 2 where nothing is known of the order
    order = pairs * torch.log(torch.tensor(2.0))
    torch.testing.assert_close(SkipGramLoss(5).loss(plain, batch) + order, SkipGramLoss(5).loss(with_order, batch))


def test_only_rows_of_the_batch_s_words_get_a_gradient() -> None:
    model, batch = made()
    SkipGramLoss(5).loss(model, batch).backward()
    assert model.table.weight.grad.is_sparse
    moved = model.table.weight.grad.to_dense().abs().sum(1) > 0
    assert set(moved.nonzero()[:, 0].tolist()) == set(TEXT)


def test_the_loss_learns_the_order_of_two_words() -> None:
    first, second = 10, 11
    text = Sequences.from_lists([[first, second, END]] * 40)
    batches = SkipGramBatches(text, count_words(text, 20), words=200, window=1, subsample=0.0, seed=1)
    model = heedful.build(WordVectorsConfig(family="word_vectors", vocabulary=20, width=8))
    optimizer = RowAdaGrad(model.parameters(), lr=0.3)
    for step in range(20):
        optimizer.zero_grad()
        SkipGramLoss(5).loss(model, batches.batch(step, batches.plan(step)[0])).backward()
        optimizer.step()
    v, s = model.table.weight, model.order.weight
    assert s[first] @ v[second] > 1
    assert s[second] @ v[first] < -1


def test_the_loss_is_an_objective_and_counts_words_read() -> None:
    _, batch = made()
    assert isinstance(SkipGramLoss(), Objective)
    assert SkipGramLoss().token_count(batch) == len(TEXT)


def test_a_window_without_words_has_zero_finite_loss() -> None:
    text = Sequences.from_lists([[1] * 50, TEXT])
    batches = SkipGramBatches(text, count_words(text, 60), words=50, window=4, subsample=0.0, seed=1, shuffle=False)
    model, _ = made()
    assert SkipGramLoss().loss(model, batches.batch(0, batches.plan(0)[0])).item() == 0
