"""Task heads: shapes, pooling and equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from heedful import Decoder, Encoder, TransformerConfig, UsageError, build
from heedful.models.heads import OutputProjection

VOCABULARY = 13
EVERY_TASK = ("masked_token", "next_sentence", "sequence_class", "answer_span", "pooled")


def reader(*tasks: str, **settings: Any) -> Encoder:
    small = {"width": 16, "heads": 2, "layers": 1, "activation": "gelu", "tasks": tasks}
    return Encoder(TransformerConfig(family="encoder", vocabulary=VOCABULARY, **{**small, **settings})).eval()


def states(model: Encoder | Decoder) -> Tensor:
    return torch.randn(3, 5, model.config.width)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_head_outputs_have_the_expected_shapes() -> None:
    model = reader(*EVERY_TASK, classes=4)
    read = model(torch.randint(0, VOCABULARY, (3, 5)), torch.tensor([5, 3, 1]))
    assert model.apply_head("masked_token", read).shape == (3, 5, VOCABULARY)
    assert model.apply_head("next_sentence", read).shape == (3, 2)
    assert model.apply_head("sequence_class", read).shape == (3, 4)
    assert model.apply_head("pooled", read).shape == (3, 16)
    start, end = model.apply_head("answer_span", read)
    assert start.shape == end.shape == (3, 5)


@torch.no_grad()
def test_the_masked_token_head_accepts_selected_positions() -> None:
    """Only the chosen states go through the large output table."""
    model = reader("masked_token")
    read, masked = states(model), torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]).bool()
    close(model.apply_head("masked_token", read[masked]), model.apply_head("masked_token", read)[masked])


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_the_masked_token_head_is_dense_activation_norm_and_table(tied: bool) -> None:
    model = reader("masked_token", tie_output=tied)
    head, read = model.heads["masked_token"], states(model)
    head.tokens.bias.normal_()
    table = model.table.weight if tied else head.tokens.weight
    by_hand = layer_norm(gelu(head.dense(read)), (16,), head.norm.weight, head.norm.bias) @ table.T + head.tokens.bias
    close(model.apply_head("masked_token", read), by_hand)
    assert (head.tokens.weight is None) == tied


@torch.no_grad()
def test_first_token_pooling_applies_a_dense_layer() -> None:
    model = reader("pooled", pooling="first")
    read, dense = states(model), model.heads["pooled"].dense
    close(model.apply_head("pooled", read), torch.tanh(read[:, 0] @ dense.weight.T + dense.bias))


@torch.no_grad()
def test_mean_pooling_ignores_padding() -> None:
    model = reader("pooled", pooling="mean")
    read = states(model)
    pooled = model.apply_head("pooled", read, torch.tensor([5, 2, 0]))
    close(pooled, torch.stack([read[0].mean(0), read[1, :2].mean(0), torch.zeros(16)]))
    close(model.apply_head("pooled", read), read.mean(1))


@torch.no_grad()
def test_last_token_pooling_ignores_padding() -> None:
    model = reader("pooled", pooling="last")
    read = states(model)
    close(model.apply_head("pooled", read, torch.tensor([5, 2, 1])), torch.stack([read[0, 4], read[1, 1], read[2, 0]]))
    close(model.apply_head("pooled", read), read[:, -1])


@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@torch.no_grad()
def test_a_text_without_tokens_has_a_finite_vector(pooling: str) -> None:
    model = reader("pooled", pooling=pooling)
    for lengths in (None, torch.tensor([0, 0])):
        assert model.apply_head("pooled", torch.zeros(2, 0, 16), lengths).isfinite().all()
    assert model.apply_head("pooled", torch.randn(2, 3, 16), torch.tensor([0, 3])).isfinite().all()


@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@torch.no_grad()
def test_padding_does_not_change_pooled_vectors(pooling: str) -> None:
    model, tokens = reader("pooled", "sequence_class", pooling=pooling), torch.randint(0, VOCABULARY, (1, 3))
    longer = torch.cat([tokens, torch.full((1, 4), 7)], dim=1)
    for task in ("pooled", "sequence_class"):
        alone = model.apply_head(task, model(tokens))
        close(model.apply_head(task, model(longer, torch.tensor([3])), torch.tensor([3])), alone)


@torch.no_grad()
def test_class_and_next_sentence_heads_use_the_pooled_vector() -> None:
    model = reader("next_sentence", "sequence_class", pooling="mean")
    read, lengths = states(model), torch.tensor([5, 2, 1])
    pooled = model.apply_head("pooled", read, lengths)
    close(model.apply_head("sequence_class", read, lengths), model.heads["sequence_class"].classes(pooled))
    close(model.apply_head("next_sentence", read, lengths), model.heads["next_sentence"].follows(pooled))


@torch.no_grad()
def test_the_answer_span_head_has_start_and_end_logits_for_every_token() -> None:
    model = reader("answer_span")
    read, ends = states(model), model.heads["answer_span"].ends
    start, end = model.apply_head("answer_span", read)
    close(start, read @ ends.weight[0] + ends.bias[0])
    close(end, read @ ends.weight[1] + ends.bias[1])


@torch.no_grad()
def test_a_decoder_can_have_additional_heads() -> None:
    settings = {"family": "decoder", "vocabulary": VOCABULARY, "width": 16, "heads": 2, "layers": 1}
    model = build(TransformerConfig(**settings, tasks=("sequence_class",), classes=3, pooling="last")).eval()
    tokens = torch.randint(0, VOCABULARY, (2, 4))
    assert list(model.heads) == ["next_token", "pooled", "sequence_class"]
    assert model.apply_head("sequence_class", model.states(tokens)).shape == (2, 3)
    close(model.apply_head("next_token", model.states(tokens)), model(tokens))


@pytest.mark.parametrize(
    ("tasks", "has"), [((), "none"), (("answer_span",), "answer_span"), (("next_sentence",), "pooled, next_sentence")]
)
def test_a_missing_head_is_refused_with_the_available_ones(tasks: tuple[str, ...], has: str) -> None:
    model = reader(*tasks)
    with pytest.raises(UsageError, match=f"this model has no 'masked_token' head; it has {has}$"):
        model.apply_head("masked_token", states(model))


@pytest.mark.parametrize("words", [5, 64, 70])
def test_a_padded_output_projection_has_the_same_logits(words: int) -> None:
    projection = OutputProjection(torch.randn(2, 3), torch.randn(words, 3), torch.randn(words))
    filled = projection.padded()
    assert len(filled.weight) == len(filled.bias) == -(-words // 64) * 64
    logits = torch.nn.functional.linear(*filled)
    torch.testing.assert_close(logits[:, :words], torch.nn.functional.linear(*projection))
    assert not logits[:, words:].any()
