"""The loss of a classifier: summed, weighted, and independent of padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import heedful
from heedful.data.labeled_dataset import ClassBatch, collate_texts, encode_example
from heedful.objectives.classification_loss import (
    ClassificationLoss,
    balanced_class_weights,
    class_logits,
    rare_label_weights,
)
from heedful.text.special_token_template import DecoderTemplate, SpecialTokenTemplate
from heedful.training.distributed.process_group import shard_rows


def model(family: str, **changes: Any) -> Any:
    shape = {"family": family, "vocabulary": 30, "width": 16, "heads": 2, "layers": 2, "dropout": 0.0, "classes": 3}
    pooling = {"encoder": "mean", "decoder": "last"}[family]
    config = heedful.TransformerConfig(**shape, tasks=("sequence_class",), pooling=pooling, **changes)
    return heedful.build(config).eval()


def batch(family: str, *texts: tuple[list[int], ...], labels: list[int]) -> ClassBatch:
    frame = SpecialTokenTemplate() if family == "encoder" else DecoderTemplate()
    rows = collate_texts([encode_example(frame, parts) for parts in texts])
    return ClassBatch(rows.tokens, rows.lengths, rows.segments, torch.tensor(labels), torch.ones(len(texts)))


TEXTS = (([7, 8, 9],), ([10],), ([11, 12, 13, 14, 15, 16],))


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_padding_and_other_rows_do_not_change_class_logits(family: str) -> None:
    classifier = model(family)
    with torch.no_grad():
        together = class_logits(classifier, batch(family, *TEXTS, labels=[0, 1, 2]))
        alone = torch.cat([class_logits(classifier, batch(family, text, labels=[0])) for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_the_loss_is_the_summed_cross_entropy(family: str) -> None:
    classifier, examples = model(family), batch(family, *TEXTS, labels=[0, 2, 1])
    expected = F.cross_entropy(class_logits(classifier, examples), examples.labels, reduction="sum")
    torch.testing.assert_close(ClassificationLoss().loss(classifier, examples), expected)
    assert ClassificationLoss().token_count(examples) == 3


def test_class_weights_apply_in_training_only() -> None:
    classifier, examples = model("encoder"), batch("encoder", *TEXTS, labels=[0, 2, 1])
    heavy = replace(examples, weights=torch.tensor([2.0, 2.0, 2.0]))
    objective = ClassificationLoss()
    assert objective.loss(classifier, heavy) == objective.loss(classifier, examples)
    classifier.train()
    torch.testing.assert_close(objective.loss(classifier, heavy), 2 * objective.loss(classifier, examples))


def test_label_weights_apply_in_training_only() -> None:
    classifier, examples = model("encoder"), batch("encoder", *TEXTS, labels=[0, 0, 0])
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    examples = replace(examples, labels=labels, weights=torch.where(labels == 1, torch.tensor([1.0, 2.0, 5.0]), 1.0))
    message = class_logits(classifier, examples).sigmoid()
    losses = -torch.where(labels == 1, message, 1 - message).log()
    objective = ClassificationLoss(multi_label=True)
    torch.testing.assert_close(objective.loss(classifier, examples), losses.sum())
    torch.testing.assert_close(objective.loss(classifier.train(), examples), (losses * examples.weights).sum())


def test_multi_label_loss_is_binary_cross_entropy_per_label() -> None:
    classifier, examples = model("encoder"), batch("encoder", *TEXTS, labels=[0, 0, 0])
    examples = replace(examples, labels=torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]), weights=torch.ones(3, 3))
    message = class_logits(classifier, examples).sigmoid()
    expected = -torch.where(examples.labels == 1, message, 1 - message).log().sum()
    torch.testing.assert_close(ClassificationLoss(multi_label=True).loss(classifier, examples), expected)


@pytest.mark.parametrize("several", [False, True])
def test_an_empty_shard_has_zero_loss(several: bool) -> None:
    classifier, examples = model("encoder"), batch("encoder", *TEXTS, labels=[0, 2, 1])
    if several:
        examples = replace(examples, labels=F.one_hot(examples.labels, 3), weights=torch.ones(3, 3))
    objective = ClassificationLoss(several)
    idle = shard_rows(examples, 5, 6)
    with torch.no_grad():
        assert (float(objective.loss(classifier, idle)), objective.token_count(idle)) == (0.0, 0)
    shares = sum(objective.loss(classifier, shard_rows(examples, rank, 2)) for rank in range(2))
    torch.testing.assert_close(shares, objective.loss(classifier, examples))


def test_segments_distinguish_the_two_texts_of_a_pair() -> None:
    one, other = ([7, 8], [9]), ([7], [8, 9])
    without, with_segments = model("encoder"), model("encoder", segments=2)
    for classifier in (without, with_segments):
        logits = class_logits(classifier, batch("encoder", one, other, labels=[0, 0]))
        assert not torch.allclose(logits[0], logits[1])


def test_balanced_class_weights_give_classes_equal_total_weight() -> None:
    counts = [90, 9, 1]
    weights = balanced_class_weights(counts)
    shares = [count * weight for count, weight in zip(counts, weights, strict=True)]
    assert shares == pytest.approx([100 / 3] * 3)
    bounded = balanced_class_weights(counts, 10.0)
    assert max(bounded) / min(bounded) == pytest.approx(10.0)
    assert sum(count * weight for count, weight in zip(counts, bounded, strict=True)) == pytest.approx(100)
    assert rare_label_weights(counts) == pytest.approx([1, 10, 90])
    assert rare_label_weights(counts, 20.0) == pytest.approx([1, 10, 20])
