"""Checks of models: correct models of every family pass; broken models are caught."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import heedful
from heedful.cli.app import main
from heedful.errors import UsageError
from heedful.lab.model_checks import check_model
from heedful.lab.position_checks import equivariance_error
from heedful.layers.masks import Mask
from heedful.layers.residual import Residual
from heedful.models.transformer import Transformer

SIZE: dict[str, Any] = {"vocabulary": 24, "width": 16, "heads": 2, "layers": 2}


def failures(model: nn.Module) -> list[str]:
    return [check.name for check in check_model(model) if check.status == "failed"]


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_a_healthy_transformer_passes(family: Any, positions: Any, norm_order: Any) -> None:
    config = heedful.TransformerConfig(family=family, positions=positions, norm_order=norm_order, **SIZE)
    assert failures(heedful.build(config)) == []


@pytest.mark.parametrize("name", ["recurrent-translator", "recurrent-bottleneck", "recurrent-writer"])
def test_a_healthy_recurrent_network_passes(name: str) -> None:
    assert failures(heedful.build(name, vocabulary=24, width=16)) == []


@pytest.mark.parametrize("changes", [{"positions": "none"}, {"positions": "none", "encoder_causal": True}])
def test_a_model_without_positions_behaves_as_configured(changes: Any) -> None:
    """It is equivariant without a causal mask and not with one; both pass."""
    assert failures(heedful.build(heedful.TransformerConfig(family="encoder", **SIZE, **changes))) == []


def test_equivariance_is_exact_up_to_rounding_without_positions_and_mask() -> None:
    def model(**changes: Any) -> Any:
        return heedful.build(heedful.TransformerConfig(family="encoder", **SIZE, **{"positions": "none", **changes}))

    assert equivariance_error(model()) < 1e-5
    assert equivariance_error(model(positions="sinusoidal")) > 1e-2
    assert equivariance_error(model(encoder_causal=True)) > 1e-2


def test_a_leaking_mask_is_caught() -> None:
    model: Any = heedful.build("laptop-writer", **SIZE)
    model.attention_mask = lambda *masks: Mask()
    assert "look-ahead" in failures(model)


def test_missing_positions_are_caught() -> None:
    model: Any = heedful.build("laptop-reader", **SIZE)
    model.embedding.positions = None
    assert failures(model) == ["order"]


def test_a_dropped_skip_connection_is_caught() -> None:
    model = heedful.build("laptop-writer", **SIZE)
    residuals = [module for module in model.modules() if isinstance(module, Residual)]
    residuals[1].skip = False
    assert failures(model) == ["skip-connections"]


def test_a_forgotten_padding_mask_is_caught() -> None:
    model: Any = heedful.build("laptop-reader", **SIZE)
    model.attention_mask = lambda *masks: Mask()
    assert failures(model) == ["padding"]


def test_a_cache_that_forgets_is_caught() -> None:
    model: Any = heedful.build("laptop-writer", **SIZE)
    extend = model.extend
    model.extend = lambda tokens, state, *options, **named: extend(tokens, model.start(len(tokens)), *options, **named)
    assert failures(model) == ["cache"]


def test_a_norm_over_the_batch_is_caught() -> None:
    class BatchMean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0, keepdim=True)

    model: Any = heedful.build("laptop-reader", **SIZE)
    model.encoder.norm = BatchMean()
    assert "batch" in failures(model)


def leak_between(model: Any, pairs: Any, layer: int = -1) -> Any:
    """The model with a mask in one layer that also lets the queries see the keys of these pairs."""
    attention = model.decoder.blocks[layer].attention
    forward = attention.forward

    def leaking(x: torch.Tensor, mask: Mask | None = None, **options: Any) -> torch.Tensor:
        tokens = x.shape[1]
        if options.get("cache") is None:
            allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            for query, key in pairs(tokens):
                allowed[query, key] = True
            mask = Mask(allowed=allowed[None, None])
        return forward(x, mask, **options)  # type: ignore[no-any-return]

    attention.forward = leaking
    return model


@pytest.mark.parametrize("preset", ["laptop-writer", "laptop-translator"])
@pytest.mark.parametrize(
    "pairs",
    [
        lambda tokens: [(query, query + 1) for query in range(tokens - 1)],
        lambda tokens: [(query, query + 2) for query in range(tokens - 2)],
        lambda tokens: [(0, 2), (1, 2)],
        lambda tokens: [(0, tokens - 1)],
    ],
    ids=["distance 1", "distance 2", "prefix", "first sees last"],
)
def test_a_leak_in_the_last_layer_is_caught_at_any_position(preset: str, pairs: Any) -> None:
    assert "look-ahead" in failures(leak_between(heedful.build(preset, **SIZE), pairs))


def test_masks_are_checked_despite_very_low_logits_of_unused_tokens() -> None:
    """Some imported models give unused tokens logits of −60,000, which could hide a leak."""
    model: Any = heedful.build("laptop-translator", **SIZE)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.1)
    forward, extend = model.forward, model.extend
    never = torch.zeros(SIZE["vocabulary"]).index_fill(0, torch.tensor([0, 1]), -60_000.0)
    model.forward = lambda *inputs, **options: forward(*inputs, **options) + never
    model.extend = lambda *inputs, **options: extend(*inputs, **options) + never
    assert failures(model) == []
    model.attention_mask = lambda *masks: Mask()
    assert failures(model) == ["look-ahead", "padding", "cache"]


def test_a_soft_mask_is_caught() -> None:
    """A bias of −15 instead of −∞ leaks less than float32 resolves in most outputs."""
    model: Any = heedful.build("laptop-writer", **SIZE)
    model.attention_mask = lambda *masks: Mask(bias=torch.full((24, 24), -15.0).triu(1)[None, None])
    assert "look-ahead" in failures(model)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
def test_missing_positions_are_caught_in_a_causal_model(positions: Any) -> None:
    """The causal mask alone makes order matter, so that missing positions only show in the attention weights."""
    model: Any = heedful.build("laptop-writer", **SIZE, positions=positions)
    model.embedding.positions, model.decoder.rotary_base, model.decoder.alibi = None, None, False
    assert failures(model) == ["order"]


def test_rotation_missing_in_one_layer_is_caught() -> None:
    model: Any = heedful.build("laptop-writer", **SIZE, positions="rotary")
    forward = model.decoder.blocks[1].attention.forward
    model.decoder.blocks[1].attention.forward = lambda x, mask, **options: forward(
        x, mask, **{**options, "rotation": None}
    )
    (failed,) = [check for check in check_model(model) if check.status == "failed"]
    assert failed.detail == "positions rotary do not reach decoder.1.attention"


@pytest.mark.parametrize("preset", ["laptop-writer", "laptop-translator"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
def test_positions_off_by_one_after_the_prompt_are_caught(preset: str, positions: Any) -> None:
    model: Any = heedful.build(preset, **SIZE, positions=positions)
    start = model.start

    def shifted(*source: Any, **options: Any) -> Any:
        state = start(*source, **options)
        positions_of = state.positions
        state.positions = lambda tokens: positions_of(tokens) + (1 if state.longest else 0)
        return state

    model.start = shifted
    assert failures(model) == ["cache"]


def test_a_cache_that_fails_after_the_third_step_is_caught() -> None:
    model: Any = heedful.build("laptop-writer", **SIZE)
    extend = model.extend

    def forgetting(tokens: torch.Tensor, state: Any, *lengths: Any, **options: Any) -> Any:
        if state.longest >= 3:
            state.layers[0].keys[:, :, 0] = 0
        return extend(tokens, state, *lengths, **options)

    model.extend = forgetting
    assert failures(model) == ["cache"]


@pytest.mark.parametrize("preset", ["laptop-writer", "laptop-translator"])
def test_a_cache_whose_beams_are_not_reordered_is_caught(preset: str) -> None:
    model: Any = heedful.build(preset, **SIZE)
    start = model.start

    def fixed(*source: Any, **options: Any) -> Any:
        state = start(*source, **options)
        layer = state.layers[1]
        reorder = layer.reorder
        layer.reorder = lambda rows, sources: reorder(rows.sort().values, sources)
        return state

    model.start = fixed
    assert failures(model) == ["cache"]


def test_padding_that_only_shifts_positions_is_caught() -> None:
    model: Any = heedful.build("laptop-reader", **SIZE, positions="sinusoidal")
    forward = model.embedding.forward
    model.embedding.forward = lambda table, tokens, positions, *rest: forward(
        table, tokens, tokens.shape[1] - 1 - positions, *rest
    )
    assert "padding" in failures(model)


def test_padding_that_is_pooled_is_caught() -> None:
    model: Any = heedful.build("laptop-reader", **SIZE, tasks=("sequence_class",), pooling="mean")
    assert failures(model) == []
    forward = model.heads.forward
    model.heads.forward = lambda task, states, table, lengths=None: forward(task, states, table, None)
    assert failures(model) == ["padding"]


def test_source_padding_that_leaks_only_in_cached_decoding_is_caught() -> None:
    model: Any = heedful.build("laptop-translator", **SIZE)
    start = model.start

    def unmasked(*source: Any, **options: Any) -> Any:
        state = start(*source, **options)
        state.memory_mask = None
        return state

    model.start = unmasked
    assert failures(model) == ["padding"]


def test_a_halved_skip_connection_is_caught() -> None:
    model = heedful.build("laptop-writer", **SIZE)
    residual: Any = next(module for module in model.modules() if isinstance(module, Residual))
    residual._add = lambda x, y: 0.5 * x + y
    assert failures(model) == ["skip-connections"]


def test_a_leak_to_the_second_text_of_a_batch_is_caught() -> None:
    model: Any = heedful.build("laptop-reader", **SIZE)
    forward = model.encoder.forward

    def mixed(*inputs: Any, **options: Any) -> torch.Tensor:
        states: torch.Tensor = forward(*inputs, **options).clone()
        states[1:2] += 0.1 * states[:1] * (len(states) > 1)
        return states

    model.encoder.forward = mixed
    assert "batch" in failures(model)


def test_a_model_that_stops_with_an_error_fails_the_check() -> None:
    model: Any = heedful.build("laptop-writer", **SIZE)
    model.extend = lambda tokens, state, *lengths, **options: torch.zeros(2, 3) @ torch.zeros(2, 3)
    (failed,) = [check for check in check_model(model) if check.status == "failed"]
    assert (failed.name, failed.detail[:37]) == ("cache", "the model stops with RuntimeError: ma")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checks_do_not_change_the_weights(dtype: torch.dtype) -> None:
    model = heedful.build("laptop-writer", **SIZE).to(dtype)
    before = {name: (parameter.dtype, parameter.data_ptr()) for name, parameter in model.named_parameters()}
    assert failures(model) == []
    assert {name: (parameter.dtype, parameter.data_ptr()) for name, parameter in model.named_parameters()} == before


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_length": 5}, {"positions": "learned", "max_length": 1}, {"window": 1},
        {"score": "uniform", "positions": "alibi"}, {"score": "position", "positions": "none"}, {"skip": False},
        {"norm": "none", "feed_forward": 0}, {"sublayers": [{"part": "decoder.1", "skip": False}]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_an_unusual_model_passes(family: Any, changes: Any) -> None:
    assert failures(heedful.build(heedful.TransformerConfig(family=family, **{**SIZE, **changes}))) == []


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_a_bidirectional_decoder_passes_as_configured(family: Any) -> None:
    config = heedful.TransformerConfig(family=family, decoder_causal=False, positions="none", **SIZE)
    assert failures(heedful.build(config)) == []


def test_an_encoder_whose_causal_mask_is_ignored_is_caught() -> None:
    model: Any = heedful.build("laptop-reader", **SIZE, encoder_causal=True)
    model.attention_mask = lambda *masks: Mask(allowed=masks[0].allowed if masks[0] else None)
    assert failures(model) == ["look-ahead"]


def test_word_vectors_have_nothing_to_check() -> None:
    config = heedful.models.model_config.WordVectorsConfig(family="word_vectors", vocabulary=9, width=4)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no states to check"):
        check_model(heedful.build(config))


def test_the_command_prints_every_check_and_fails_for_a_broken_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run() -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["heedful", "lab", "check", str(tmp_path), "--device", "cpu"])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().out

    heedful.save(heedful.build("laptop-writer", **SIZE), tmp_path)
    code, text = run()
    assert code == 0
    names = [line.split()[0] for line in text.splitlines()]
    assert names == ["order", "look-ahead", "padding", "cache", "batch", "skip-connections"]
    monkeypatch.setattr(Transformer, "attention_mask", lambda self, *masks: Mask())
    code, text = run()
    assert code == 1
    assert "look-ahead        failed          a later token changes earlier predictions" in text
