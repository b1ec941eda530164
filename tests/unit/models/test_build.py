"""Every family: building, counting parameters, training, and greedy decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from heedful import PRESETS, RecurrentConfig, TransformerConfig, UsageError, build, count_parameters, preset
from heedful.layers.kv_cache import DecoderState
from heedful.models.build import FAMILIES
from heedful.models.model_config import ModelConfig

WORDS, LENGTH, BEGIN = 8, 4, 0
SMALL = {"vocabulary": WORDS, "width": 32, "heads": 2, "layers": 1, "dropout": 0.0, "feed_forward": 64}
RECURRENT = {"vocabulary": WORDS, "width": 32, "dropout": 0.0}
DESIGNS: dict[str, ModelConfig] = {
    "encoder": TransformerConfig(family="encoder", tasks=("masked_token",), **SMALL),
    "decoder": TransformerConfig(family="decoder", **{**SMALL, "layers": 2}),
    "encoder_decoder": TransformerConfig(family="encoder_decoder", **SMALL),
    "recurrent_decoder": RecurrentConfig(family="recurrent_decoder", **{**RECURRENT, "width": 64}),
    "recurrent_encoder_decoder": RecurrentConfig(family="recurrent_encoder_decoder", **RECURRENT),
}
TABLES = {"word_vectors"}
"""Families without a text input, tested separately."""
every_family = pytest.mark.parametrize("family", sorted({*FAMILIES} - TABLES))


@every_family
def test_a_family_builds_its_class_from_its_configuration(family: str) -> None:
    model = build(DESIGNS[family])
    assert type(model) is FAMILIES[family]
    assert model.config == DESIGNS[family]


def test_build_takes_a_name_or_a_configuration_and_changes() -> None:
    assert build("bert-tiny", vocabulary=50, layers=1).config == preset("bert-tiny", vocabulary=50, layers=1)
    assert build(DESIGNS["decoder"], layers=1).config == DESIGNS["decoder"].with_changes(layers=1)
    assert build(DESIGNS["decoder"]).config is DESIGNS["decoder"]


# Counting


def test_every_parameter_is_counted_once() -> None:
    for design in DESIGNS.values():
        model = build(design)
        assert count_parameters(model).total == sum(weight.numel() for weight in model.parameters())
        assert count_parameters(model) == count_parameters(design)


def test_components_of_a_parameter_count() -> None:
    transformer = count_parameters("laptop-translator", positions="learned", target_vocabulary=50)
    assert list(transformer.parts) == [
        "token vectors",
        "target token vectors",
        "source positions",
        "target positions",
        "encoder self-attention",
        "encoder feed-forward",
        "encoder norms",
        "decoder self-attention",
        "decoder cross-attention",
        "decoder feed-forward",
        "decoder norms",
    ]
    assert transformer.parts["target token vectors"] == 50 * 256
    recurrent = count_parameters("recurrent-translator", tie_output=False)
    assert set(recurrent.parts) == {
        "token vectors",
        "decoder recurrence",
        "heads",
        "encoder recurrence",
        "context",
    }
    assert set(count_parameters("bert-tiny").parts) >= {"positions and segments", "heads"}


def test_a_printed_parameter_count_adds_up() -> None:
    rows = [line.rsplit(maxsplit=2) for line in str(count_parameters("paper-base")).splitlines()]
    numbers = {name: int(number.replace(",", "")) for name, number, _ in rows}
    shares = {name: float(share.rstrip("%")) for name, _, share in rows}
    assert numbers.pop("total") == sum(numbers.values()) == 63_082_496
    assert shares.pop("total") == 100.0
    assert sum(shares.values()) == pytest.approx(100.0, abs=0.5)
    assert numbers["token vectors"] == 37_000 * 512


def test_a_built_model_cannot_be_counted_with_changes() -> None:
    with pytest.raises(UsageError, match="pass its configuration with the changes instead"):
        count_parameters(build(DESIGNS["decoder"]), layers=3)


# Learning


def shrunk(name: str) -> ModelConfig:
    """The configuration of a preset at a size for tests."""
    if name.startswith("recurrent"):
        return preset(name, vocabulary=20, width=16)
    small = {"vocabulary": 20, "width": 24, "heads": 6, "layers": 2, "feed_forward": 16, "max_length": 8}
    shared = {"key_value_heads": 2} if "key_value_heads" in PRESETS[name] else {}
    return preset(name, **small, **shared)


def sum_of_all_outputs(model: Any) -> Tensor:
    tokens, lengths = torch.randint(0, 20, (3, 7)), torch.tensor([7, 4, 2])
    family = model.config.family
    if family.endswith("encoder_decoder"):
        return model(tokens, tokens.flip(1), lengths).square().sum()
    if family != "encoder":
        return model(tokens).square().sum()
    segments = (tokens % 2) if model.config.segments else None
    states = model(tokens, lengths, segments=segments)
    return sum((model.apply_head(task, states, lengths).square().sum() for task in model.heads), states.square().sum())


@pytest.mark.parametrize("name", PRESETS)
def test_gradients_reach_every_parameter_of_every_preset(name: str) -> None:
    model = build(shrunk(name))
    sum_of_all_outputs(model).backward()
    unreached = [n for n, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert unreached == []
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attention", ["none", "dot", "scaled_dot", "bilinear", "additive"])
def test_gradients_reach_every_parameter_of_every_recurrent_translator(cell: str, attention: str) -> None:
    model = build("recurrent-translator", vocabulary=20, width=16, layers=2, cell=cell, attention=attention)
    sum_of_all_outputs(model).backward()
    assert [n for n, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def copying_loss(model: Any, text: Tensor) -> Tensor:
    """Copy the text; an encoder, which sees all of it, reverses it."""
    begin = torch.full((len(text), 1), BEGIN)
    shifted = torch.cat([begin, text[:, :-1]], dim=1)
    family = model.config.family
    if family == "encoder":
        return cross_entropy(model.apply_head("masked_token", model(text)).flatten(0, 1), text.flip(1).flatten())
    if family.endswith("encoder_decoder"):
        return cross_entropy(model(text, shifted).flatten(0, 1), text.flatten())
    return cross_entropy(model(torch.cat([text, shifted], dim=1))[:, LENGTH:].flatten(0, 1), text.flatten())


@every_family
def test_every_family_learns_to_copy_in_a_few_steps(family: str) -> None:
    """Chance is ln 7 = 1.95 per token; only earlier tokens allow a lower loss."""
    model = build(DESIGNS[family])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(120):
        loss = copying_loss(model, torch.randint(1, WORDS, (32, LENGTH)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.8
    assert sum(losses[-10:]) / 10 < 0.8


# One search for all


def greedy(model: Any, state: DecoderState, token: Tensor, steps: int) -> Tensor:
    """One greedy search over the decoding protocol alone (G1)."""
    chosen = [token]
    for step in range(steps):
        assert state.lengths.tolist() == [step] * len(token)
        chosen.append(model.extend(chosen[-1][:, None], state)[:, -1].argmax(-1))
        if step == 1:
            state.reorder(torch.arange(len(token)).flip(0))
            chosen = [row.flip(0) for row in chosen]
    return torch.stack(chosen, dim=1)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - TABLES - {"encoder"}))
@torch.no_grad()
def test_one_greedy_search_serves_every_decoder(family: str) -> None:
    model = build(DESIGNS[family], vocabulary=50).eval()
    source, first = torch.randint(0, 50, (3, 5)), torch.tensor([1, 2, 3])
    reads = family.endswith("encoder_decoder")
    state = model.start(source, torch.tensor([5, 3, 1]), capacity=2) if reads else model.start(3, capacity=2)
    assert isinstance(state, DecoderState)
    written = greedy(model, state, first, steps=6)
    turned = (source.flip(0), written, torch.tensor([1, 3, 5])) if reads else (written,)
    assert written[:, 0].tolist() == [3, 2, 1]
    assert torch.equal(model(*turned).argmax(-1)[:, :-1], written[:, 1:])
