"""Encoder-decoder: cached decoding equals teacher forcing; padding, causality and tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful import EncoderDecoder, TransformerConfig, UsageError, build, record

VOCABULARY = 13
VARIANTS: dict[str, dict[str, Any]] = {
    **{scheme: {"positions": scheme} for scheme in ("none", "sinusoidal", "learned", "rotary", "alibi")},
    "window": {"window": 3},
    "grouped, window, alibi": {"heads": 4, "key_value_heads": 2, "window": 2, "positions": "alibi"},
    "bilinear": {"score": "bilinear", "positions": "rotary"},
    "additive": {"score": "additive", "heads": 4, "key_value_heads": 1},
    "concatenated": {"position_combine": "concatenate", "tie_output": False},
    "own target vocabulary": {"target_vocabulary": 11},
    "more decoder layers": {"decoder_layers": 3},
    "no softmax": {"softmax": False},
    "modern": {"norm": "rms", "norm_order": "pre", "gated": True, "bias": False},
}
every_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)


def translator(**settings: Any) -> EncoderDecoder:
    small = {"width": 16, "heads": 2, "layers": 2, "feed_forward": 24, "max_length": 12, "vocabulary": VOCABULARY}
    return EncoderDecoder(TransformerConfig(family="encoder_decoder", **{**small, **settings})).eval()


def text(*shape: int) -> Tensor:
    return torch.randint(1, 11, shape)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def padded(rows: list[Tensor], wide: int, pad: int) -> tuple[Tensor, Tensor]:
    filled = [torch.cat([row, row.new_full((wide - len(row),), pad)]) for row in rows]
    return torch.stack(filled), torch.tensor([len(row) for row in rows])


@every_variant
@pytest.mark.parametrize("sizes", [[1] * 8, [3, 1, 4]], ids=["token by token", "in chunks"])
@torch.no_grad()
def test_cached_decoding_equals_one_forward_pass(settings: dict[str, Any], sizes: list[int]) -> None:
    model, source, target, lengths = translator(**settings), text(3, 6), text(3, 8), torch.tensor([6, 2, 0])
    state = model.start(source, lengths)
    stepwise = torch.cat([model.extend(chunk, state) for chunk in target.split(sizes, dim=1)], dim=1)
    close(stepwise, model(source, target, lengths))


@every_variant
@torch.no_grad()
def test_rows_of_different_lengths_decode_as_each_does_alone(settings: dict[str, Any]) -> None:
    model = translator(**settings)
    sources, targets = [text(6), text(2), text(4)], [text(6), text(4), text(3)]
    state = model.start(*padded(sources, 6, pad=0))
    read: list[list[Tensor]] = [[], [], []]
    for begin, ends in [((0, 0, 0), (4, 1, 0)), ((4, 1, 0), (5, 4, 2)), ((5, 4, 2), (6, 4, 3))]:
        new = [row[b:e] for row, b, e in zip(targets, begin, ends, strict=True)]
        tokens, lengths = padded(new, max(map(len, new)), pad=5)
        for row, logits in enumerate(model.extend(tokens, state, lengths)):
            read[row].append(logits[: lengths[row]])
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        close(torch.cat(read[row]), model(source[None], target[None])[0])
    assert state.lengths.tolist() == [6, 4, 3]


@every_variant
@torch.no_grad()
def test_reordered_rows_keep_their_source(settings: dict[str, Any]) -> None:
    model, source, lengths = translator(**settings), text(3, 6), torch.tensor([6, 2, 4])
    begun, rest, chosen = text(3, 3), text(4, 4), torch.tensor([1, 2, 1, 1])
    state = model.start(source, lengths, capacity=2)
    model.extend(begun, state)
    state.reorder(chosen)
    stepwise = torch.cat([model.extend(token, state) for token in rest.split(1, dim=1)], dim=1)
    full = model(source[chosen], torch.cat([begun[chosen], rest], dim=1), lengths[chosen])
    close(stepwise, full[:, 3:])
    assert state.lengths.tolist() == [7] * 4


@torch.no_grad()
def test_a_cache_can_be_reordered_before_the_first_token() -> None:
    model, source, target = translator(), text(2, 5), text(3, 4)
    state = model.start(source, torch.tensor([5, 3]))
    state.reorder(torch.tensor([1, 1, 0]))
    close(model.extend(target, state), model(source[[1, 1, 0]], target, torch.tensor([3, 3, 5])))


@torch.no_grad()
def test_the_source_is_encoded_once() -> None:
    model, source = translator(), text(2, 5)
    with record(model, "encoder.*", "decoder.*.cross.keys") as recorded:
        state = model.start(source)
        for token in text(2, 3).split(1, dim=1):
            model.extend(token, state)
    assert len(recorded.history["encoder.0.attention.output"]) == 1
    keys = recorded.history["decoder.1.cross.keys"]
    assert len({key.data_ptr() for key in keys}) == 1
    assert len(keys) == 3


@every_variant
@torch.no_grad()
def test_padding_and_other_rows_do_not_change_the_output(settings: dict[str, Any]) -> None:
    model = translator(**settings)
    sources, targets = [text(6), text(3), text(1)], [text(2), text(5), text(4)]
    alone = [model(source[None], target[None])[0] for source, target in zip(sources, targets, strict=True)]
    for pad in (0, 7):
        source, lengths = padded(sources, 8, pad)
        together = model(source, padded(targets, 5, pad)[0], lengths)
        for row, logits in enumerate(alone):
            close(together[row, : len(logits)], logits)


@every_variant
@torch.no_grad()
def test_a_source_of_padding_equals_an_empty_source(settings: dict[str, Any]) -> None:
    model, target = translator(**settings), text(2, 4)
    nothing = model(text(2, 0), target)
    assert nothing.isfinite().all()
    close(model(text(2, 5), target, torch.tensor([0, 0])), nothing)
    state = model.start(text(2, 0))
    close(model.extend(target, state), nothing)


def test_a_source_of_padding_gives_finite_gradients() -> None:
    model = translator(positions="alibi")
    model(text(2, 5), text(2, 4), torch.tensor([0, 5])).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@every_variant
@torch.no_grad()
def test_a_later_target_token_never_changes_an_earlier_logit(settings: dict[str, Any]) -> None:
    model, source, target = translator(**settings), text(2, 5), text(2, 8)
    changed = target.clone()
    changed[:, 5] = changed[:, 5] % 10 + 1
    before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=0)
    assert (before[:, 5] - after[:, 5]).abs().max() > 1e-3


@every_variant
@torch.no_grad()
def test_every_source_token_reaches_every_logit(settings: dict[str, Any]) -> None:
    model, source, target = translator(**settings), text(1, 5), text(1, 4)
    before = model(source, target)
    for position in range(5):
        changed = source.clone()
        changed[0, position] = changed[0, position] % 10 + 1
        assert ((model(changed, target) - before).abs().amax(-1) > 1e-6).all()


def test_source_target_and_output_share_one_table() -> None:
    model, source, target = translator(), torch.tensor([[1, 2]]), torch.tensor([[3, 4]])
    tables = [name for name, weight in model.named_parameters() if VOCABULARY in weight.shape]
    assert tables == ["table.weight"]
    model(source, target)[..., 5].sum().backward()
    assert model.table.weight.grad is not None
    heard = model.table.weight.grad.abs().sum(1) > 0
    assert heard.nonzero()[:, 0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("tied", [True, False])
def test_a_target_vocabulary_has_separate_tables(tied: bool) -> None:
    model = translator(target_vocabulary=11, tie_output=tied)
    source, target = torch.tensor([[11, 12]]), torch.tensor([[3, 4]])
    logits = model(source, target)
    assert logits.shape == (1, 2, 11)
    logits[..., 5].sum().backward()
    assert model.table.weight.grad is not None
    assert (model.table.weight.grad.abs().sum(1) > 0).nonzero()[:, 0].tolist() == [11, 12]
    assert model.target_table is not None
    assert model.target_table.weight.grad is not None
    heard = (model.target_table.weight.grad.abs().sum(1) > 0).nonzero()[:, 0].tolist()
    assert heard == ([3, 4, 5] if tied else [3, 4])


def test_target_ids_are_checked_against_the_target_vocabulary() -> None:
    model = translator(target_vocabulary=11)
    with pytest.raises(UsageError, match="token id 12 is outside the vocabulary of 11"):
        model(torch.tensor([[12]]), torch.tensor([[12]]))


@pytest.mark.parametrize(("source", "target"), [(13, 2), (2, 13)])
def test_source_and_target_lengths_are_limited_by_the_learned_table(source: int, target: int) -> None:
    model = translator(positions="learned")
    with pytest.raises(UsageError, match="13 tokens is longer than the learned position table of 12"):
        model(text(1, source), text(1, target))


@torch.no_grad()
def test_decoding_past_the_learned_table_is_refused() -> None:
    model = translator(positions="learned")
    state = model.start(text(1, 3))
    model.extend(text(1, 12), state)
    with pytest.raises(UsageError, match="13 tokens is longer than the learned position table of 12; shorten it"):
        model.extend(text(1, 1), state)


def test_decoding_without_a_source_is_refused_with_a_remedy() -> None:
    model = translator()
    of_another_family = build("laptop-writer", width=16, heads=2, layers=2).start(1)
    with pytest.raises(UsageError, match=r"model\.encode\(source\), or a cache from model\.start\(source\)"):
        model.states(text(1, 2))
    with pytest.raises(UsageError, match=r"no encoded source"):
        model.extend(text(1, 2), of_another_family)
