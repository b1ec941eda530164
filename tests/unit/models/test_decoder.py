"""Decoder: cached decoding equals one forward pass for all position encodings, masks and batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from heedful import Decoder, TransformerConfig, UsageError, record
from heedful.layers.kv_cache import KVCache

VOCABULARY = 13
SCHEMES = ("none", "sinusoidal", "learned", "rotary", "alibi")
VARIANTS: dict[str, dict[str, Any]] = {
    **{scheme: {"positions": scheme} for scheme in SCHEMES},
    "concatenated": {"position_combine": "concatenate", "tie_output": False},
    "window": {"window": 3},
    "window, alibi": {"window": 3, "positions": "alibi"},
    "grouped": {"heads": 4, "key_value_heads": 2},
    "grouped, window, rotary": {"heads": 4, "key_value_heads": 1, "positions": "rotary", "window": 2},
    "dot": {"score": "dot"},
    "bilinear": {"score": "bilinear", "positions": "learned"},
    "additive": {"score": "additive"},
    "bilinear, rotary": {"score": "bilinear", "positions": "rotary"},
    "additive, grouped, alibi": {"score": "additive", "heads": 4, "key_value_heads": 2, "positions": "alibi"},
    "free head widths": {"head_width": 6, "value_width": 5},
    "no softmax": {"softmax": False, "positions": "learned"},
    "no skip": {"skip": False},
    "modern": {"norm": "rms", "norm_order": "pre", "gated": True, "bias": False, "positions": "rotary"},
}
every_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
PACKABLE = {name: settings for name, settings in VARIANTS.items() if name != "bilinear, rotary"}
packing_variants = pytest.mark.parametrize("settings", PACKABLE.values(), ids=PACKABLE)
every_scheme = pytest.mark.parametrize("positions", SCHEMES)


def decoder(**settings: Any) -> Decoder:
    small = {"width": 16, "heads": 2, "layers": 2, "feed_forward": 24, "max_length": 16}
    return Decoder(TransformerConfig(family="decoder", vocabulary=VOCABULARY, **{**small, **settings})).eval()


def text(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def in_chunks(model: Decoder, tokens: Tensor, sizes: list[int], state: KVCache | None = None) -> Tensor:
    state = model.start(len(tokens)) if state is None else state
    return torch.cat([model.extend(chunk, state) for chunk in tokens.split(sizes, dim=1)], dim=1)


def padded(rows: list[Tensor], pad: int = 0) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    filled = [torch.cat([row, row.new_full((int(lengths.max()) - len(row),), pad)]) for row in rows]
    return torch.stack(filled), lengths


def extend_ragged(model: Decoder, rows: list[Tensor], state: KVCache) -> list[Tensor]:
    tokens, lengths = padded(rows)
    logits = model.extend(tokens, state, lengths)
    return [row[:length] for row, length in zip(logits, lengths.tolist(), strict=True)]


@every_variant
@torch.no_grad()
def test_cached_decoding_equals_one_forward_pass(settings: dict[str, Any]) -> None:
    model, tokens = decoder(**settings), text(3, 9)
    close(in_chunks(model, tokens, [1] * 9), model(tokens))


@every_variant
@torch.no_grad()
def test_cached_decoding_in_chunks_equals_one_forward_pass(settings: dict[str, Any]) -> None:
    model, tokens = decoder(**settings), text(3, 9)
    close(in_chunks(model, tokens, [4, 1, 3, 1]), model(tokens))


@every_variant
@torch.no_grad()
def test_rows_of_different_lengths_decode_as_each_does_alone(settings: dict[str, Any]) -> None:
    """One row starts empty, one gets no tokens for a step: the others do not change."""
    model = decoder(**settings)
    texts = [text(9), text(6), text(5)]
    chunks = [[texts[0].split([4, 1, 3, 1])], [texts[1].split([2, 3, 0, 1])], [texts[2].split([0, 2, 2, 1])]]
    state = model.start(3)
    read: list[list[Tensor]] = [[], [], []]
    for step in range(4):
        for row, logits in enumerate(extend_ragged(model, [part[0][step] for part in chunks], state)):
            read[row].append(logits)
    for row, whole in enumerate(texts):
        close(torch.cat(read[row]), model(whole[None])[0])
    assert state.lengths.tolist() == [9, 6, 5]


@every_variant
@torch.no_grad()
def test_reordered_rows_decode_as_each_does_alone(settings: dict[str, Any]) -> None:
    """One row dropped, one copied, as beam search does."""
    model = decoder(**settings)
    begun, rest, chosen = text(3, 4), text(3, 5), torch.tensor([2, 0, 2])
    state = model.start(3)
    model.extend(begun, state)
    state.reorder(chosen)
    whole = torch.cat([begun[chosen], rest], dim=1)
    close(in_chunks(model, rest, [1, 3, 1], state), model(whole)[:, 4:])


@every_variant
@torch.no_grad()
def test_reordered_ragged_rows_decode_as_each_does_alone(settings: dict[str, Any]) -> None:
    model = decoder(**settings)
    begun, rest, chosen = [text(5), text(2), text(0)], text(4, 3), [1, 1, 2, 0]
    state = model.start(3)
    extend_ragged(model, begun, state)
    state.reorder(torch.tensor(chosen))
    logits = in_chunks(model, rest, [1, 2], state)
    for row, old in enumerate(chosen):
        whole = torch.cat([begun[old], rest[row]])
        close(logits[row], model(whole[None])[0, -3:])


@torch.no_grad()
def test_a_cache_can_be_reordered_to_fewer_rows() -> None:
    model, tokens = decoder(), text(3, 6)
    state = model.start(3)
    model.extend(tokens[:, :4], state)
    state.reorder(torch.tensor([1]))
    close(model.extend(tokens[1:2, 4:], state), model(tokens[1:2])[:, 4:])
    assert state.lengths.tolist() == [6]


@pytest.mark.parametrize(("reserved", "stored"), [(0, 9), (2, 9), (16, 16)])
@torch.no_grad()
def test_a_cache_keeps_its_capacity_and_grows_past_it(reserved: int, stored: int) -> None:
    model, tokens = decoder(positions="rotary"), text(2, 9)
    state = model.start(2, capacity=reserved)
    close(in_chunks(model, tokens, [1] * 9, state), model(tokens))
    keys = state.layers[0].keys
    assert keys is not None
    assert keys.shape[2] >= stored
    assert reserved < 9 or keys.shape[2] == reserved


@torch.no_grad()
def test_a_preallocated_cache_is_written_in_place() -> None:
    model, tokens = decoder(), text(2, 6)
    state = model.start(2, capacity=6)
    places = []
    for token in tokens.split(1, dim=1):
        model.extend(token, state)
        assert state.layers[1].values is not None
        places.append(state.layers[1].values.data_ptr())
    assert len(set(places)) == 1


@every_variant
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_logit(settings: dict[str, Any]) -> None:
    model, tokens = decoder(**settings), text(2, 8)
    changed = tokens.clone()
    changed[:, 5] = changed[:, 5] % (VOCABULARY - 1) + 1
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=0)
    assert (before[:, 5] - after[:, 5]).abs().max() > 1e-3


@every_variant
@torch.no_grad()
def test_padding_and_other_rows_do_not_change_the_output(settings: dict[str, Any]) -> None:
    model = decoder(**settings)
    texts = [text(7), text(3), text(1)]
    together = model(padded(texts)[0])
    for row, alone in enumerate(texts):
        close(together[row, : len(alone)], model(alone[None])[0])


@packing_variants
@torch.no_grad()
def test_packed_documents_equal_separate_rows(settings: dict[str, Any]) -> None:
    model, documents = decoder(**settings), [text(4), text(1), text(6)]
    ids = torch.cat([torch.full((len(document),), number) for number, document in enumerate(documents)])
    packed = model(torch.cat(documents)[None], document_ids=ids[None])[0]
    close(packed, torch.cat([model(document[None])[0] for document in documents]))


@torch.no_grad()
def test_a_packed_row_may_exceed_the_learned_position_table_if_no_document_does() -> None:
    model, documents = decoder(positions="learned", max_length=4), [text(4), text(3)]
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    close(
        model(torch.cat(documents)[None], document_ids=ids)[0],
        torch.cat([model(document[None])[0] for document in documents]),
    )
    with pytest.raises(UsageError, match="5 tokens is longer than the learned position table of 4"):
        model(text(1, 7), document_ids=torch.tensor([[0, 0, 1, 1, 1, 1, 1]]))


@pytest.mark.parametrize("score", ["bilinear", "additive"])
def test_packing_with_rotary_positions_and_an_absolute_score_is_refused(score: str) -> None:
    model = decoder(positions="rotary", score=score)
    with pytest.raises(UsageError, match=f"score '{score}'.* use score 'scaled_dot'"):
        model(text(1, 3), document_ids=torch.tensor([[0, 0, 1]]))


@every_scheme
def test_every_position_encoding_but_none_distinguishes_positions(positions: str) -> None:
    """The last token of "a b c" and "b a c" has seen the same set of words (Q2 is about causal masks of depth 1)."""
    model = decoder(positions=positions, layers=1)
    with torch.no_grad():
        one, other = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
    assert ((one - other).abs().max() > 1e-4) == (positions != "none")


@torch.no_grad()
def test_a_window_masks_distant_tokens() -> None:
    model, tokens = decoder(window=3, layers=1), text(1, 8)
    changed = tokens.clone()
    changed[0, 2] = changed[0, 2] % (VOCABULARY - 1) + 1
    moved = (model(tokens) - model(changed)).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [False, False, True, True, True, False, False, False]


def test_a_tied_output_layer_shares_its_gradient_with_the_input_table() -> None:
    model, tokens = decoder(), text(1, 4)
    assert not [name for name in model.state_dict() if name.startswith("heads.next_token")]
    read = torch.autograd.grad(model(tokens)[..., 0].sum(), model.table.weight)[0]
    assert read[0].abs().sum() > 0, "token 0 is not in the text: this came from the output"
    assert read[tokens[0, 0]].abs().sum() > 0, "token 0's logits depend on the input only through its vector"


def test_an_untied_output_layer_has_its_own_weight() -> None:
    model, tokens = decoder(tie_output=False), text(1, 4)
    assert model.state_dict()["heads.next_token.weight"].shape == (VOCABULARY, 16)
    model(tokens)[..., 0].sum().backward()
    assert model.table.weight.grad is not None
    assert model.table.weight.grad[0].abs().sum() == 0
    assert model.heads["next_token"].weight.grad[0].abs().sum() > 0


def test_an_output_bias_is_added_to_the_logits() -> None:
    model, tokens = decoder(output_bias=True), text(1, 4)
    with torch.no_grad():
        before = model(tokens)
        model.heads["next_token"].bias.add_(torch.arange(float(VOCABULARY)))
        close(model(tokens) - before, torch.arange(float(VOCABULARY)).expand_as(before))


@torch.no_grad()
def test_concatenated_positions_follow_the_token_vector() -> None:
    model, tokens = decoder(position_combine="concatenate", position_width=4, tie_output=False), text(2, 5)
    assert model.table.weight.shape == (VOCABULARY, 12)
    with record(model, "embedding") as recorded:
        model(tokens)
    x = recorded["embedding"]
    assert x.shape == (2, 5, 16)
    close(x[..., :12], model.table(tokens) * 12**0.5)
    close(x[0, :, 12:], x[1, :, 12:])
    assert x[0, 0, 12:].tolist() == [0, 1, 0, 1]


@torch.no_grad()
def test_extending_by_no_tokens_gives_no_logits_and_keeps_the_state() -> None:
    model, tokens = decoder(), text(2, 3)
    assert model(tokens[:, :0]).shape == (2, 0, VOCABULARY)
    state = model.start(2)
    assert model.extend(tokens[:, :0], state).shape == (2, 0, VOCABULARY)
    close(model.extend(tokens, state), model(tokens))


@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_a_token_outside_the_vocabulary_is_named(wrong: int) -> None:
    with pytest.raises(UsageError, match=rf"token id {wrong} is outside the vocabulary of {VOCABULARY} \(0 to 12\)"):
        decoder()(torch.tensor([[1, wrong, 2]]))


@torch.no_grad()
def test_a_text_past_the_learned_table_is_refused_with_a_remedy() -> None:
    model = decoder(positions="learned", max_length=6)
    assert model(text(1, 6)).shape == (1, 6, VOCABULARY)
    with pytest.raises(UsageError, match=r"7 tokens is longer than the learned position table of 6; .*max_length"):
        model(text(1, 7))


@torch.no_grad()
def test_decoding_past_the_learned_table_is_refused_with_a_remedy() -> None:
    model = decoder(positions="learned", max_length=6)
    state = model.start(1)
    in_chunks(model, text(1, 6), [1] * 6, state)
    with pytest.raises(UsageError, match="7 tokens is longer than the learned position table of 6"):
        model.extend(text(1, 1), state)


@torch.no_grad()
def test_padding_does_not_count_towards_the_learned_position_table() -> None:
    """Rows of 4 and 4 real tokens arrive in two chunks 3 wide: two more fit the table of 6."""
    model, texts = decoder(positions="learned", max_length=6), [text(6), text(6)]
    state = model.start(2)
    extend_ragged(model, [texts[0][:3], texts[1][:1]], state)
    extend_ragged(model, [texts[0][3:4], texts[1][1:4]], state)
    whole = model(torch.stack(texts))
    for position in (4, 5):
        step = torch.stack([row[position : position + 1] for row in texts])
        close(model.extend(step, state)[:, 0], whole[:, position])
    with pytest.raises(UsageError, match="7 tokens"):
        model.extend(text(2, 1), state)


@pytest.mark.parametrize("positions", sorted({*SCHEMES} - {"learned"}))
@torch.no_grad()
def test_other_position_encodings_have_no_length_limit(positions: str) -> None:
    assert decoder(positions=positions, max_length=6)(text(1, 40)).isfinite().all()
