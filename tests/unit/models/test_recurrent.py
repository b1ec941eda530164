"""Recurrent models: the same protocol as the transformers, with and without the bottleneck."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heedful import RecurrentConfig, RecurrentDecoder, RecurrentEncoderDecoder, UsageError, edit, record, tap_names

VOCABULARY = 13
SCORES = ("dot", "scaled_dot", "bilinear", "additive")
every_cell = pytest.mark.parametrize("cell", ["gru", "lstm", "window"])
every_attention = pytest.mark.parametrize("attention", ["none", *SCORES])
in_steps = pytest.mark.parametrize("sizes", [[1] * 7, [3, 1, 3]], ids=["token by token", "in chunks"])


def writer(**settings: Any) -> RecurrentDecoder:
    small = {"width": 16, "layers": 2, "vocabulary": VOCABULARY}
    return RecurrentDecoder(RecurrentConfig(family="recurrent_decoder", **{**small, **settings})).eval()


def translator(**settings: Any) -> RecurrentEncoderDecoder:
    small = {"width": 16, "layers": 2, "vocabulary": VOCABULARY}
    return RecurrentEncoderDecoder(RecurrentConfig(family="recurrent_encoder_decoder", **{**small, **settings})).eval()


def text(*shape: int) -> Tensor:
    return torch.randint(1, 11, shape)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def padded(rows: list[Tensor], wide: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    filled = [torch.cat([row, row.new_full((wide - len(row),), pad)]) for row in rows]
    return torch.stack(filled), torch.tensor([len(row) for row in rows])


# A recurrent language model (F4)


@every_cell
@in_steps
@torch.no_grad()
def test_stepwise_decoding_of_a_language_model_equals_one_forward_pass(cell: str, sizes: list[int]) -> None:
    model, tokens = writer(cell=cell), text(3, 7)
    state = model.start(3)
    close(torch.cat([model.extend(chunk, state) for chunk in tokens.split(sizes, dim=1)], dim=1), model(tokens))
    assert state.lengths.tolist() == [7, 7, 7]


@every_cell
@torch.no_grad()
def test_language_model_rows_of_different_lengths_decode_as_each_does_alone(cell: str) -> None:
    model, texts = writer(cell=cell), [text(7), text(4), text(3)]
    state = model.start(3)
    read: list[list[Tensor]] = [[], [], []]
    for begin, end in [((0, 0, 0), (4, 1, 0)), ((4, 1, 0), (5, 4, 2)), ((5, 4, 2), (7, 4, 3))]:
        new = [row[b:e] for row, b, e in zip(texts, begin, end, strict=True)]
        tokens, lengths = padded(new, max(map(len, new)), pad=5)
        for row, logits in enumerate(model.extend(tokens, state, lengths)):
            read[row].append(logits[: lengths[row]])
    for row, full in enumerate(texts):
        close(torch.cat(read[row]), model(full[None])[0])
    assert state.lengths.tolist() == [7, 4, 3]


@every_cell
@torch.no_grad()
def test_reordered_language_model_rows_decode_as_each_does_alone(cell: str) -> None:
    model, begun, rest, chosen = writer(cell=cell), text(3, 3), text(4, 4), torch.tensor([2, 0, 2, 2])
    state = model.start(3)
    model.extend(begun, state, torch.tensor([3, 1, 2]))
    state.reorder(chosen)
    assert state.lengths.tolist() == [2, 3, 2, 2]
    logits = model.extend(rest, state)
    for row, old in enumerate(chosen.tolist()):
        full = torch.cat([begun[old, : [3, 1, 2][old]], rest[row]])
        close(logits[row], model(full[None])[0, -4:])


@every_cell
@torch.no_grad()
def test_a_later_token_does_not_change_earlier_logits_of_a_language_model(cell: str) -> None:
    model, tokens = writer(cell=cell), text(2, 7)
    changed = tokens.clone()
    changed[:, 4] = changed[:, 4] % 10 + 1
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert ((before[:, 4:] - after[:, 4:]).abs().amax(-1) > 1e-6).all()


def test_a_tied_language_model_has_one_table() -> None:
    tied, separate = writer(), writer(tie_output=False)
    assert not [name for name in tied.state_dict() if name.startswith("next_token")]
    assert separate.state_dict()["next_token.weight"].shape == (VOCABULARY, 16)
    tokens = torch.tensor([[1, 2]])
    for model, heard in ((tied, [0, 1, 2]), (separate, [1, 2])):
        model(tokens)[..., 0].sum().backward()
        assert model.table.weight.grad is not None
        assert (model.table.weight.grad.abs().sum(1) > 0).nonzero()[:, 0].tolist() == heard


# An encoder-decoder, with a bottleneck (F5) or attention (F6)


@every_cell
@every_attention
@in_steps
@torch.no_grad()
def test_stepwise_decoding_of_a_translator_equals_one_forward_pass(cell: str, attention: str, sizes: list[int]) -> None:
    model, source, target = translator(cell=cell, attention=attention), text(3, 5), text(3, 7)
    lengths = torch.tensor([5, 2, 0])
    state = model.start(source, lengths)
    stepwise = torch.cat([model.extend(chunk, state) for chunk in target.split(sizes, dim=1)], dim=1)
    close(stepwise, model(source, target, lengths))


@every_cell
@every_attention
@torch.no_grad()
def test_translator_rows_of_different_lengths_decode_as_each_does_alone(cell: str, attention: str) -> None:
    model = translator(cell=cell, attention=attention)
    sources, targets = [text(5), text(2), text(4)], [text(6), text(4), text(3)]
    state = model.start(*padded(sources, 5))
    read: list[list[Tensor]] = [[], [], []]
    for begin, end in [((0, 0, 0), (4, 1, 0)), ((4, 1, 0), (5, 4, 2)), ((5, 4, 2), (6, 4, 3))]:
        new = [row[b:e] for row, b, e in zip(targets, begin, end, strict=True)]
        tokens, lengths = padded(new, max(map(len, new)), pad=5)
        for row, logits in enumerate(model.extend(tokens, state, lengths)):
            read[row].append(logits[: lengths[row]])
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        close(torch.cat(read[row]), model(source[None], target[None])[0])
    assert state.lengths.tolist() == [6, 4, 3]


@every_cell
@every_attention
@torch.no_grad()
def test_reordered_translator_rows_keep_their_source(cell: str, attention: str) -> None:
    model, source, lengths = translator(cell=cell, attention=attention), text(3, 5), torch.tensor([5, 2, 4])
    begun, rest, chosen = text(3, 3), text(4, 3), torch.tensor([1, 2, 1, 1])
    state = model.start(source, lengths)
    model.extend(begun, state)
    state.reorder(chosen)
    stepwise = torch.cat([model.extend(token, state) for token in rest.split(1, dim=1)], dim=1)
    full = model(source[chosen], torch.cat([begun[chosen], rest], dim=1), lengths[chosen])
    close(stepwise, full[:, 3:])
    assert state.lengths.tolist() == [6] * 4


@every_cell
@every_attention
@pytest.mark.parametrize("bidirectional", [True, False])
@torch.no_grad()
def test_padding_and_other_rows_do_not_change_the_output(cell: str, attention: str, bidirectional: bool) -> None:
    model = translator(cell=cell, attention=attention, bidirectional=bidirectional)
    sources, targets = [text(5), text(3), text(1)], [text(2), text(4), text(3)]
    alone = [model(source[None], target[None])[0] for source, target in zip(sources, targets, strict=True)]
    for pad in (0, 7):
        source, lengths = padded(sources, 7, pad)
        together = model(source, padded(targets, 4, pad)[0], lengths)
        for row, logits in enumerate(alone):
            close(together[row, : len(logits)], logits)


@every_cell
@every_attention
@torch.no_grad()
def test_a_source_of_padding_equals_an_empty_source(cell: str, attention: str) -> None:
    model, target = translator(cell=cell, attention=attention), text(2, 4)
    nothing = model(text(2, 0), target)
    assert nothing.isfinite().all()
    close(model(text(2, 5), target, torch.tensor([0, 0])), nothing)


@every_cell
@torch.no_grad()
def test_extending_by_no_tokens_gives_no_logits_and_keeps_the_state(cell: str) -> None:
    model, tokens = writer(cell=cell), text(2, 3)
    assert model(tokens[:, :0]).shape == (2, 0, VOCABULARY)
    state = model.start(2)
    model.extend(tokens, state)
    before = state.hidden
    assert model.extend(tokens[:, :0], state).shape == (2, 0, VOCABULARY)
    assert all(torch.equal(a, b) for a, b in zip(before, state.hidden, strict=True))


def test_a_source_of_padding_gives_finite_gradients() -> None:
    model = translator()
    model(text(2, 5), text(2, 4), torch.tensor([0, 5])).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@every_attention
@torch.no_grad()
def test_a_later_target_token_never_changes_an_earlier_logit(attention: str) -> None:
    model, source, target = translator(attention=attention), text(2, 5), text(2, 7)
    changed = target.clone()
    changed[:, 4] = changed[:, 4] % 10 + 1
    before, after = model(source, target), model(source, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], atol=1e-6, rtol=0)
    assert (before[:, 4] - after[:, 4]).abs().max() > 1e-4


@every_cell
@every_attention
@torch.no_grad()
def test_without_attention_the_context_is_one_fixed_vector(cell: str, attention: str) -> None:
    """Without attention, one vector is all the decoder knows of the source, however long that is."""
    model, source, target = translator(cell=cell, attention=attention), text(2, 5), text(2, 4)
    state, disturbed = model.start(source), model.start(source)
    assert disturbed.memory is not None
    disturbed.memory = disturbed.memory + torch.randn_like(disturbed.memory)
    moved = (model.extend(target, state) - model.extend(target, disturbed)).abs().max()
    assert moved == 0 if attention == "none" else moved > 1e-3


@torch.no_grad()
def test_the_bottleneck_vector_is_all_the_decoder_knows_of_the_source() -> None:
    model, target = translator(attention="none"), text(2, 4)
    state, other = model.start(text(2, 5)), model.start(text(2, 9))
    expected = model.extend(target, model.start(text(2, 1)))
    assert other.context is not None
    assert state.context is not None
    state.context, state.hidden = other.context, other.hidden
    replaced = model.extend(target, state)
    other_logits = model.extend(target, other)
    assert torch.equal(replaced, other_logits)
    assert (expected - replaced).abs().max() > 1e-3
    assert other.context.shape == (2, 16)


@torch.no_grad()
def test_the_first_decoder_state_is_made_from_both_ends_of_the_source() -> None:
    """s_0 = tanh(W h_n): the forward direction's last state concatenated with the backward direction's first."""
    model, source = translator(layers=1), text(2, 5)
    state = model.start(source)
    assert state.memory is not None
    last = torch.cat([state.memory[:, -1, :8], state.memory[:, 0, 8:]], dim=-1)
    close(state.context, last)
    close(state.hidden[0][0], torch.tanh(model.bridge(last)))


@every_cell
@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_alignment_rows_are_distributions_over_the_real_source(cell: str, score: str) -> None:
    model, source, lengths = translator(cell=cell, attention=score), text(3, 5), torch.tensor([5, 2, 0])
    with record(model, "cross.weights", "context") as recorded:
        model(source, text(3, 4), lengths)
    weights = recorded["cross.weights"]
    assert weights.shape == (3, 1, 4, 5)
    close(weights[:2].sum(-1), torch.ones(2, 1, 4))
    assert (weights[1, ..., 2:] == 0).all()
    assert (weights[1, ..., :2] > 0).all()
    assert (weights[2] == 0).all(), "nothing to attend to: zeros"
    assert (recorded["context"][2] == 0).all()


@torch.no_grad()
def test_the_context_is_the_weighted_mean_of_the_encoders_states() -> None:
    model, source, target = translator(attention="dot"), text(2, 5), text(2, 4)
    state = model.start(source)
    with record(model, "cross*", "context") as recorded:
        model.extend(target, state)
    assert state.memory is not None
    close(recorded["context"], recorded["cross.weights"][:, 0] @ state.memory)


@torch.no_grad()
def test_replacing_the_attention_weights_changes_the_logits() -> None:
    model, source, target = translator(), text(2, 5), text(2, 4)
    first = torch.zeros(2, 1, 4, 5)
    first[..., 0] = 1.0
    before = model(source, target)
    with edit(model, {"cross.weights": first}), record(model, "context") as recorded:
        after = model(source, target)
    memory = model.start(source).memory
    assert memory is not None
    close(recorded["context"], memory[:, :1].expand(2, 4, 16))
    assert (before - after).abs().max() > 1e-4


def test_a_bottleneck_model_has_no_attention_weights() -> None:
    assert "cross.weights" in tap_names(translator())
    assert not [name for name in tap_names(translator(attention="none")) if name.startswith("cross")]


def test_a_target_vocabulary_has_a_separate_table() -> None:
    model = translator(target_vocabulary=11)
    logits = model(torch.tensor([[11, 12]]), torch.tensor([[3, 4]]))
    assert logits.shape == (1, 2, 11)
    logits[..., 5].sum().backward()
    assert model.target_table is not None
    for table, heard in ((model.table, [11, 12]), (model.target_table, [3, 4, 5])):
        assert table.weight.grad is not None
        assert (table.weight.grad.abs().sum(1) > 0).nonzero()[:, 0].tolist() == heard


@pytest.mark.parametrize("attention", ["dot", "scaled_dot", "bilinear", "additive"])
def test_without_the_softmax_a_context_is_the_sum_of_states_by_their_scores(attention: str) -> None:
    model = translator(attention=attention, softmax=False)
    source, target, lengths = text(2, 5), text(2, 4), torch.tensor([5, 3])
    with record(model, "cross.scores", "cross.weights", "context") as recorded:
        observed = model(source, target, lengths)
    weights = recorded["cross.scores"].clone()
    weights[1, ..., 3:] = 0.0
    assert torch.equal(recorded["cross.weights"], weights)
    torch.testing.assert_close(recorded["context"], (weights @ model.start(source, lengths).memory[:, None])[:, 0])
    torch.testing.assert_close(model(source, target, lengths), observed)


# Wrong use


@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_a_token_outside_the_vocabulary_is_named(wrong: int) -> None:
    bad, good = torch.tensor([[1, wrong]]), torch.tensor([[1, 2]])
    message = f"token id {wrong} is outside the vocabulary of {VOCABULARY}"
    with pytest.raises(UsageError, match=message):
        writer()(bad)
    with pytest.raises(UsageError, match=message):
        translator()(bad, good)
    with pytest.raises(UsageError, match=message):
        translator()(good, bad)


def test_a_length_past_the_batch_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match="a length of 7 does not fit a batch of 5 tokens"):
        translator()(text(2, 5), text(2, 3), torch.tensor([7, 5]))


def test_decoding_without_a_source_is_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match=r"no encoded source; create it with model\.start\(source\)"):
        translator().extend(text(1, 2), writer().start(1))


def test_a_missing_head_is_refused_with_the_available_ones() -> None:
    with pytest.raises(UsageError, match="no 'pooled' head; it has next_token"):
        writer().apply_head("pooled", torch.zeros(1, 1, 16))


def test_memory_does_not_grow_with_the_number_of_batch_shapes() -> None:
    """oneDNN's RNN caches memory for every shape; its operator must not be used."""

    class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            recorded.add(str(func))
            return func(*args, **(kwargs or {}))

    recorded: set[str] = set()
    with Operations():
        writer(cell="lstm").train()(text(3, 5)).sum().backward()
    assert not [name for name in recorded if "mkldnn" in name]


# Feed-forward networks over a window, and other contexts (F7)


def window_layer(model: Any) -> Any:
    return model.decoder.cell[0]


def test_a_window_network_is_a_layer_over_the_last_vectors() -> None:
    model = writer(cell="window", window=3, layers=1, width=4)
    with record(model, "embedding.tokens", "decoder.0.hidden") as recorded:
        model(text(1, 5))
    x = torch.cat([torch.zeros(2, 4), recorded["embedding.tokens"][0]])
    for t in range(5):
        close(recorded["decoder.0.hidden"][0, t], torch.tanh(window_layer(model).linear(x[t : t + 3].flatten())))


@pytest.mark.parametrize(("inputs", "ordered"), [("concatenate", True), ("sum", False), ("positions", True)])
def test_a_sum_over_the_window_is_blind_to_order(inputs: str, ordered: bool) -> None:
    model = writer(cell="window", window=4, window_inputs=inputs, layers=1)
    one, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 1, 3, 4]])
    same = torch.allclose(model(one)[:, -1], model(other)[:, -1], atol=1e-6)
    assert same != ordered


def test_a_window_network_ignores_tokens_before_its_window() -> None:
    model = writer(cell="window", window=3, layers=1)
    one, other = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[9, 9, 3, 4, 5]])
    close(model(one)[:, -1], model(other)[:, -1])
    assert not torch.allclose(model(one)[:, -2], model(other)[:, -2])


@pytest.mark.parametrize("context", ["last", "mean", "maximum", "learned"])
@every_cell
def test_the_context_is_this_function_of_the_real_states(cell: str, context: str) -> None:
    model = translator(cell=cell, attention="none", context=context)
    source, lengths = text(3, 6), torch.tensor([6, 2, 4])
    with record(model, "encoder.states", "context") as recorded:
        model(source, text(3, 2), lengths)
    for row, length in enumerate(lengths.tolist()):
        states = recorded["encoder.states"][row, :length]
        if context == "last":
            expected = torch.cat([states[-1, :8], states[0, 8:]])
        elif context == "mean":
            expected = states.mean(0)
        elif context == "maximum":
            expected = states.amax(0)
        else:
            query = model.summary.query[0]
            expected = torch.softmax(states @ query / 4, 0) @ states
        close(recorded["context"][row, 0], expected)


@pytest.mark.parametrize("context", ["mean", "maximum", "learned"])
def test_the_context_of_an_empty_source_is_zero_with_finite_gradients(context: str) -> None:
    model = translator(attention="none", context=context).train()
    state = model.start(text(2, 3), torch.tensor([3, 0]))
    assert not state.context[1].any()
    model(text(2, 3), text(2, 2), torch.tensor([3, 0])).sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": "mean"}, "context 'mean' is for models without attention: set attention='none'"),
        ({"window": 3}, "window and window_inputs are for cell 'window', not 'gru'"),
        ({"attention": "uniform", "softmax": False}, "attention 'uniform' without softmax"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        translator(**settings)
