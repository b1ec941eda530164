"""Encoder: bidirectional attention, padding, segments and masks."""

from __future__ import annotations

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from heedful import Encoder, Mask, TransformerConfig, UsageError, record
from heedful.layers.masks import causal, padding

VOCABULARY = 13
VARIANTS: dict[str, dict[str, Any]] = {
    **{scheme: {"positions": scheme} for scheme in ("none", "sinusoidal", "learned", "rotary", "alibi")},
    "window": {"window": 2},
    "window, alibi": {"window": 2, "positions": "alibi"},
    "grouped": {"heads": 4, "key_value_heads": 2},
    "bilinear": {"score": "bilinear"},
    "additive": {"score": "additive", "positions": "alibi"},
    "concatenated": {"position_combine": "concatenate", "tie_output": False},
    "segments": {"segments": 2, "embedding_norm": True},
    "no softmax": {"softmax": False},
    "no skip": {"skip": False},
    "pre-norm": {"norm_order": "pre", "norm": "rms"},
}
every_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)


def reader(**settings: Any) -> Encoder:
    small = {"width": 16, "heads": 2, "layers": 2, "feed_forward": 24, "max_length": 12}
    return Encoder(TransformerConfig(family="encoder", vocabulary=VOCABULARY, **{**small, **settings})).eval()


def text(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@every_variant
@torch.no_grad()
def test_padding_and_other_rows_do_not_change_the_output(settings: dict[str, Any]) -> None:
    model, texts = reader(**settings), [text(7), text(3), text(1)]
    lengths = torch.tensor([len(row) for row in texts])
    alone = [model(row[None])[0] for row in texts]
    for pad in (0, 5):
        together = torch.stack([torch.cat([row, row.new_full((9 - len(row),), pad)]) for row in texts])
        for row, states in zip(model(together, lengths), alone, strict=True):
            close(row[: len(states)], states)


@every_variant
def test_a_row_of_padding_has_finite_outputs_and_gradients(settings: dict[str, Any]) -> None:
    model = reader(**settings)
    states = model(text(2, 5), torch.tensor([0, 5]))
    assert states.isfinite().all()
    states.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@every_variant
@torch.no_grad()
def test_a_text_without_tokens_has_no_states(settings: dict[str, Any]) -> None:
    assert reader(**settings)(text(2, 0)).shape == (2, 0, 16)


@torch.no_grad()
def test_without_positions_an_encoder_is_permutation_equivariant() -> None:
    model, tokens, order = reader(positions="none"), text(2, 7), torch.randperm(7)
    close(model(tokens[:, order]), model(tokens)[:, order])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
@torch.no_grad()
def test_with_positions_the_order_of_the_text_matters(positions: str) -> None:
    model, tokens = reader(positions=positions), torch.tensor([[1, 2, 3, 4, 5]])
    order = torch.tensor([1, 0, 2, 4, 3])
    assert (model(tokens[:, order]) - model(tokens)[:, order]).abs().max() > 1e-3


@torch.no_grad()
def test_every_token_attends_to_every_other() -> None:
    model, tokens = reader(layers=1), text(1, 5)
    before = model(tokens)
    for position in range(5):
        changed = tokens.clone()
        changed[0, position] = changed[0, position] % (VOCABULARY - 1) + 1
        assert ((model(changed) - before).abs().amax(-1) > 1e-6).all()


@torch.no_grad()
def test_an_encoder_window_covers_both_directions() -> None:
    model, tokens = reader(layers=1, window=2), text(1, 6)
    changed = tokens.clone()
    changed[0, 2] = changed[0, 2] % (VOCABULARY - 1) + 1
    moved = (model(tokens) - model(changed)).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [False, True, True, True, False, False]


@torch.no_grad()
def test_a_custom_mask_combines_with_padding() -> None:
    model, tokens, lengths = reader(), text(2, 6), torch.tensor([6, 4])
    both = model(tokens, mask=padding(lengths, 6) & causal())
    close(model(tokens, lengths, mask=causal()), both)
    assert (model(tokens, lengths) - both).abs().max() > 1e-3


@torch.no_grad()
def test_segments_change_the_states_and_default_to_the_first() -> None:
    model, tokens = reader(segments=2), text(2, 6)
    first, second = torch.zeros(2, 6, dtype=torch.long), torch.tensor([0, 0, 0, 1, 1, 1]).expand(2, 6)
    close(model(tokens), model(tokens, segments=first))
    with record(model, "embedding") as recorded:
        moved = model(tokens, segments=second) - model(tokens, segments=first)
    one, other = recorded.history["embedding"]
    vectors = model.embedding.segments
    assert vectors is not None
    close((one - other)[:, 3:], (vectors.weight[1] - vectors.weight[0]).expand(2, 3, 16))
    assert moved.abs().max() > 1e-3


@torch.no_grad()
def test_without_skip_connections_the_input_does_not_bypass_a_block() -> None:
    """With nothing to attend to and no skip-connection, no information of the tokens is left."""
    model, nothing = reader(skip=False, layers=1), torch.tensor([0])
    one, other = model(text(1, 4), nothing), model(text(1, 4), nothing)
    close(one, other)
    with_skip = reader(skip=True, layers=1)
    assert (with_skip(torch.tensor([[1]]), nothing) - with_skip(torch.tensor([[2]]), nothing)).abs().max() > 1e-3


@torch.no_grad()
def test_without_softmax_the_scores_are_the_weights() -> None:
    model, tokens = reader(softmax=False), text(1, 5)
    with record(model, "encoder.0.attention.*") as recorded:
        model(tokens)
    query, key = (recorded[f"encoder.0.attention.{name}"] for name in ("queries", "keys"))
    close(recorded["encoder.0.attention.weights"], query @ key.mT / 8**0.5)


def test_a_text_past_the_learned_table_is_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match=r"13 tokens is longer than the learned position table of 12; .*max_length"):
        reader(positions="learned")(text(1, 13))


@pytest.mark.parametrize("wrong", [VOCABULARY + 4, -2])
def test_a_token_outside_the_vocabulary_is_named(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"token id {wrong} is outside the vocabulary of {VOCABULARY}"):
        reader()(torch.tensor([[1, wrong]]))


def test_a_segment_outside_its_table_is_named() -> None:
    with pytest.raises(UsageError, match="segment id 2 is outside"):
        reader(segments=2)(torch.tensor([[1, 1]]), segments=torch.tensor([[0, 2]]))


def test_segments_without_segment_vectors_are_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="no segment vectors; build it with segments=2"):
        reader()(torch.tensor([[1, 1]]), segments=torch.tensor([[0, 1]]))


def test_a_mask_that_is_not_boolean_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the test suite
    with pytest.raises(UsageError, match=r"boolean \(True = may attend\), got torch.float32; .*additive\(\)"):
        reader()(text(2, 4), mask=Mask(allowed=torch.ones(4, 4)))


@pytest.mark.parametrize("shape", [(3, 3), (4, 5), (5, 4), (3, 1, 4, 4), (2, 3, 4, 4)])
def test_a_mask_that_does_not_fit_is_refused_with_its_shape(shape: tuple[int, ...]) -> None:
    """Two texts, two heads, four tokens."""
    with pytest.raises(UsageError, match=r"mask of shape \(" + ", ".join(map(str, shape))):
        reader()(text(2, 4), mask=Mask(allowed=torch.ones(shape, dtype=torch.bool)))


def test_a_window_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="window must be positive, got -1"):
        reader()(text(1, 3), mask=Mask(window=-1))
