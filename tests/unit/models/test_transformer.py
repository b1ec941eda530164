"""Initialization: the distribution of every weight."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from heedful import PRESETS, RecurrentConfig, TransformerConfig, build
from heedful.models.transformer import initialize

EVERY_PART: dict[str, dict[str, Any]] = {
    "encoder": {
        "family": "encoder",
        "positions": "learned",
        "segments": 2,
        "tie_output": False,
        "embedding_norm": True,
        "tasks": ("masked_token", "next_sentence", "sequence_class", "answer_span"),
    },
    "decoder": {"family": "decoder", "tie_output": False, "output_bias": True, "norm_order": "pre"},
    "bilinear": {"family": "decoder", "score": "bilinear", "norm": "rms", "gated": True},
    "additive": {"family": "encoder_decoder", "score": "additive", "target_vocabulary": 30},
}
RECURRENT: dict[str, dict[str, Any]] = {
    f"{cell}, {attention}": {"cell": cell, "attention": attention, "tie_output": False, "layers": 2}
    for cell in ("gru", "lstm")
    for attention in ("none", "bilinear", "additive")
}


def small(settings: dict[str, Any]) -> Any:
    if "cell" in settings:
        return RecurrentConfig(family="recurrent_encoder_decoder", vocabulary=20, width=16, **settings)
    return TransformerConfig(vocabulary=20, width=16, heads=2, layers=2, max_length=8, **settings)


every_part = pytest.mark.parametrize(
    "settings", [*EVERY_PART.values(), *RECURRENT.values()], ids=[*EVERY_PART, *RECURRENT]
)


def forward(model: Any) -> torch.Tensor:
    tokens = torch.randint(0, 20, (2, 5))
    return model(tokens, tokens) if model.config.family.endswith("encoder_decoder") else model(tokens)


def assert_std(weight: torch.Tensor, expected: float) -> None:
    """Within five standard errors of an estimate from that many draws."""
    assert weight.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.numel()))
    assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel())


def glorot(weight: torch.Tensor) -> float:
    return math.sqrt(2 / sum(weight.shape))


@every_part
def test_initialize_draws_every_weight(settings: dict[str, Any]) -> None:
    model = build(small(settings))
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    initialize(model)
    assert [name for name, weight in model.named_parameters() if weight.isnan().any()] == []
    assert forward(model).isfinite().all()


@every_part
def test_a_model_built_on_meta_can_be_initialized_and_used(settings: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = build(small(settings))
    assert all(weight.is_meta for weight in model.parameters())
    model.to_empty(device="cpu")
    initialize(model)
    assert not [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    assert not [name for name, tensor in model.named_buffers() if tensor.is_meta]
    assert forward(model.eval()).isfinite().all()


@every_part
def test_one_seed_gives_one_model(settings: dict[str, Any]) -> None:
    def drawn(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return build(small(settings)).state_dict()

    first, again, other = drawn(3), drawn(3), drawn(4)
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not torch.equal(first["table.weight"], other["table.weight"])


def test_the_meta_device_holds_the_largest_preset_without_memory() -> None:
    with torch.device("meta"):
        model = build(max(PRESETS, key=lambda name: PRESETS[name].get("width", 0)))
    assert sum(weight.numel() for weight in model.parameters()) > 6e9
    assert all(weight.is_meta for weight in model.parameters())


def test_matrices_are_glorots_biases_zero_gains_one() -> None:
    model = build("laptop-translator", norm_order="post", final_norm=True, vocabulary=500, layers=1)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert_std(module.weight, glorot(module.weight))
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()


def test_queries_keys_and_values_are_drawn_as_one_matrix() -> None:
    """Four times 256 in all, against twice for a matrix on its own: smaller by √2."""
    weight = build("laptop-writer", vocabulary=50, layers=1).decoder.blocks[0].attention.query_key_value.weight
    for part in weight.chunk(3):
        assert_std(part, glorot(part) / math.sqrt(2))


@pytest.mark.parametrize(("preset", "sub_layers"), [("laptop-writer", 2), ("laptop-translator", 3)])
@pytest.mark.parametrize("final_norm", [None, False])
@pytest.mark.parametrize("layers", [1, 4])
def test_output_matrices_of_pre_norm_sublayers_are_scaled_by_their_number(
    preset: str, sub_layers: int, layers: int, final_norm: bool | None
) -> None:
    model = build(preset, vocabulary=50, layers=layers, final_norm=final_norm)
    for block in model.decoder.blocks:
        writers = [block.attention.output, block.feed_forward.outward, *([block.cross.output] if block.cross else [])]
        assert len(writers) == sub_layers
        for writer in writers:
            assert_std(writer.weight, glorot(writer.weight) / math.sqrt(sub_layers * layers))
        assert_std(block.feed_forward.inward.weight, glorot(block.feed_forward.inward.weight))


def test_embedding_tables_have_variance_one_over_their_width() -> None:
    model = build("laptop-writer", vocabulary=500, positions="learned", tie_output=False, output_bias=True)
    assert_std(model.table.weight, 256**-0.5)
    assert_std(model.heads["next_token"].weight, 256**-0.5)
    assert_std(model.embedding.positions.table.weight, 256**-0.5)
    assert not model.heads["next_token"].bias.any()


@torch.no_grad()
def test_a_new_language_model_of_any_depth_has_logits_of_variance_near_one() -> None:
    for layers in (1, 12):
        logits = build("laptop-writer", layers=layers, vocabulary=500, width=128).eval()(torch.randint(0, 500, (2, 32)))
        assert 0.7 < logits.std() < 1.4


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_recurrent_matrices_are_orthogonal_gate_by_gate(cell: str, part: str) -> None:
    model = build("recurrent-translator", vocabulary=20, width=32, layers=2, cell=cell)
    recurrence = getattr(model, part).cell
    for name, weight in recurrence.named_parameters():
        if name.startswith("weight_hh"):
            for gate in weight.chunk(4 if cell == "lstm" else 3):
                torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), atol=1e-5, rtol=0)


def test_lstm_forget_gate_biases_are_one() -> None:
    """Bias 1 at the forget gate, once over its two bias vectors; 0 at every other."""
    model = build("recurrent-writer", vocabulary=20, width=32, layers=2)
    for layer in range(2):
        total = getattr(model.decoder.cell, f"bias_ih_l{layer}") + getattr(model.decoder.cell, f"bias_hh_l{layer}")
        entry, forget, candidate, exit_ = total.chunk(4)
        assert (forget == 1).all()
        assert not torch.cat([entry, candidate, exit_]).any()


def test_recurrent_input_matrices_are_glorots_gate_by_gate() -> None:
    weight = build("recurrent-writer", vocabulary=20, width=128).decoder.cell.weight_ih_l0
    for gate in weight.chunk(4):
        assert_std(gate, glorot(gate))
