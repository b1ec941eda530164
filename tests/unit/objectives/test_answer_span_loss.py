"""The loss of extractive question answering."""

from __future__ import annotations

from dataclasses import replace

import torch

from heedful import Encoder, TransformerConfig
from heedful.data.qa_dataset import SpanBatch, SpanBatches
from heedful.data.token_store import Sequences
from heedful.objectives.answer_span_loss import AnswerSpanLoss, span_logits
from heedful.text.special_tokens import END, START
from heedful.training.distributed.process_group import shard_rows


def batches(**settings: object) -> SpanBatches:
    windows = Sequences.from_lists(
        [[START, 7, 8, END, 9, 10, 11, 12, END], [START, 7, END, 13, 14, END], [START, 8, END, 9, END]]
    )
    positions = Sequences.from_lists([[4, 5, 6], [3, 3, 4], [3, 0, 0]])
    return SpanBatches(windows, positions, **{"max_tokens": 1000, "seed": 0, "shuffle": False, **settings})


def model() -> Encoder:
    small = {"width": 16, "heads": 2, "layers": 1, "segments": 2, "tasks": ("answer_span",)}
    return Encoder(TransformerConfig(family="encoder", vocabulary=20, **small)).eval()


def full() -> SpanBatch:
    source = batches()
    (indices,) = source.plan(0)
    return source.batch(0, indices)


@torch.no_grad()
def test_the_loss_is_the_negative_log_probability_of_start_and_end() -> None:
    reader, batch = model(), full()
    start, end = reader.apply_head("answer_span", reader(batch.tokens, batch.lengths, segments=segments(batch)))
    expected = 0.0
    for row, (begins, length) in enumerate(zip(batch.passage_starts.tolist(), batch.lengths.tolist(), strict=True)):
        positions = [0, *range(begins, length - 1)]
        for scores, label in zip((start, end), batch.labels[row].tolist(), strict=True):
            expected -= float(torch.log_softmax(scores[row, positions], -1)[positions.index(label)])
    torch.testing.assert_close(AnswerSpanLoss().loss(reader, batch).item(), expected, rtol=1e-5, atol=1e-5)


def segments(batch: SpanBatch) -> torch.Tensor:
    rows = torch.zeros_like(batch.tokens)
    for row, (begins, length) in enumerate(zip(batch.passage_starts.tolist(), batch.lengths.tolist(), strict=True)):
        rows[row, begins:length] = 1
    return rows


def test_a_batch_s_loss_is_the_sum_of_its_windows_losses() -> None:
    reader, objective = model(), AnswerSpanLoss()
    singly = batches(max_tokens=1)
    alone = [singly.batch(0, indices) for indices in singly.plan(0)]
    assert [objective.token_count(batch) for batch in alone] == [2, 2, 2]
    assert objective.token_count(full()) == 6
    total = sum(objective.loss(reader, batch) for batch in alone)
    torch.testing.assert_close(objective.loss(reader, full()), total, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_shards_of_a_batch_sum_to_its_loss() -> None:
    reader, objective, batch = model(), AnswerSpanLoss(), full()
    shares = [shard_rows(batch, rank, 4) for rank in range(4)]  # of three rows: one device has none
    assert sum(objective.token_count(share) for share in shares) == 6
    total = sum(objective.loss(reader, share) for share in shares)
    torch.testing.assert_close(objective.loss(reader, batch), total, rtol=1e-5, atol=1e-5)


def test_question_separator_and_padding_cannot_be_answers() -> None:
    batch = full()
    for scores in span_logits(model(), batch.tokens, batch.lengths, batch.passage_starts):
        likely = scores.softmax(-1)
        for row, (begins, length) in enumerate(zip(batch.passage_starts.tolist(), batch.lengths.tolist(), strict=True)):
            assert likely[row, 1:begins].sum() == likely[row, length - 1 :].sum() == 0
            assert likely[row].sum() > 0.999


def test_a_row_without_labels_has_zero_loss() -> None:
    batch = full()
    blank = replace(batch, labels=torch.full_like(batch.labels, batch.ignore_index))
    assert AnswerSpanLoss().token_count(blank) == 0
    assert AnswerSpanLoss().loss(model(), blank) == 0


def test_an_epoch_has_every_window_once_in_an_order_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        many = Sequences.from_lists([[START, 7, END, *[9] * (n % 7 + 1), END] for n in range(60)])
        positions = Sequences.from_lists([[3, 3, 3]] * 60)
        actual = [batch.tolist() for batch in SpanBatches(many, positions, max_tokens=40, seed=seed).plan(epoch)]
        assert sorted(number for batch in actual for number in batch) == list(range(60))
        return actual

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
