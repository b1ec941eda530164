"""Configurations: invalid values are refused in one line with a remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heedful import PRESETS, RecurrentConfig, TransformerConfig, UsageError, preset
from heedful.models.presets import make_config


def transformer(**settings: Any) -> TransformerConfig:
    return TransformerConfig(**{"family": "decoder", "vocabulary": 100, **settings})


def recurrent(**settings: Any) -> RecurrentConfig:
    return RecurrentConfig(**{"family": "recurrent_encoder_decoder", "vocabulary": 100, **settings})


def refusal(config: Any, **settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        config(**settings)
    return str(caught.value)


@pytest.mark.parametrize(("misspelled", "meant"), [("widht", "width"), ("postions", "positions"), ("layer", "layers")])
def test_an_unknown_setting_suggests_the_nearest(misspelled: str, meant: str) -> None:
    message = refusal(transformer, **{misspelled: 3})
    assert message == f"unknown setting '{misspelled}'; did you mean '{meant}'?"


def test_an_unknown_setting_without_a_near_match_lists_all() -> None:
    message = refusal(recurrent, zzz=1)
    assert "unknown setting 'zzz'; known: attention, bidirectional, cell" in message


SIZES = ("vocabulary", "width", "heads", "head_width", "value_width", "key_value_heads", "layers")
MORE_SIZES = ("window", "max_length", "position_width", "rotary_base", "norm_epsilon", "classes")


@pytest.mark.parametrize("name", [*SIZES, *MORE_SIZES])
@pytest.mark.parametrize("size", [0, -2])
def test_a_size_of_zero_or_less_is_refused_by_name_and_value(name: str, size: int) -> None:
    message = refusal(transformer, **{name: size})
    assert message == f"{name}: input should be greater than 0, got {size}"


@pytest.mark.parametrize("name", ["target_vocabulary", "decoder_layers"])
def test_a_decoder_side_size_of_zero_or_less_is_refused_too(name: str) -> None:
    assert f"{name}: input should be greater than 0, got -1" in refusal(
        transformer, family="encoder_decoder", **{name: -1}
    )


@pytest.mark.parametrize("name", ["vocabulary", "target_vocabulary", "width", "layers"])
def test_a_recurrent_size_of_zero_or_less_is_refused_too(name: str) -> None:
    assert refusal(recurrent, **{name: 0}) == f"{name}: input should be greater than 0, got 0"


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("config", [transformer, recurrent])
def test_a_dropout_outside_its_range_is_refused(config: Any, dropout: float) -> None:
    message = refusal(config, dropout=dropout)
    assert message.startswith("dropout: input should be")
    assert message.endswith(f"got {dropout}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positions": "absolute"}, "positions: input should be 'none', 'sinusoidal', 'learned', 'rotary' or 'alibi'"),
        ({"score": "cosine"}, "score: input should be 'dot', 'scaled_dot', 'bilinear', 'additive', 'uniform'"),
        ({"norm": "batch"}, "norm: input should be 'layer', 'rms' or 'none', got 'batch'"),
        ({"activation": "tanh"}, "activation: input should be"),
        ({"family": "decoders"}, "family: input should be 'encoder', 'decoder' or 'encoder_decoder', got 'decoders'"),
        ({"tasks": ("translate",)}, "tasks.0: input should be"),
        ({"width": "wide"}, "width: input should be a valid integer"),
    ],
)
def test_an_impossible_choice_is_refused_with_the_possible_ones(settings: dict[str, Any], message: str) -> None:
    assert message in refusal(transformer, **settings)


def test_a_missing_setting_is_named() -> None:
    assert refusal(TransformerConfig, family="decoder") == "setting 'vocabulary' is missing"


def test_several_errors_are_reported_together() -> None:
    message = refusal(transformer, width=0, color="red")
    assert "width: input should be greater than 0, got 0; unknown setting 'color'" in message


def test_a_width_not_divisible_by_its_heads_suggests_divisible_ones() -> None:
    message = refusal(transformer, width=100, heads=8)
    assert "width 100 is not divisible by 8 heads; use width 96 or 104, or 5 or 10 heads" in message
    assert transformer(width=96, heads=8)
    assert transformer(width=100, heads=5)


def test_a_width_not_divisible_by_its_heads_is_valid_with_a_head_width() -> None:
    assert transformer(width=100, heads=8, head_width=16).resolved()["value_width"] == 16


def test_key_value_heads_must_divide_the_heads() -> None:
    message = refusal(transformer, heads=8, key_value_heads=3)
    assert message == "8 heads cannot share 3 key/value heads evenly; use one of 1, 2, 4, 8"


def test_rotary_positions_need_an_even_head_width() -> None:
    message = refusal(transformer, positions="rotary", width=30, heads=2)
    assert message == "rotary positions turn pairs: head width 15 is odd; use 16"
    assert transformer(positions="alibi", width=30, heads=2)


def test_sinusoidal_positions_need_an_even_width() -> None:
    message = refusal(transformer, width=15, heads=3)
    assert message == "sinusoidal positions come in pairs: width 15 is odd; use 16"
    assert transformer(positions="learned", width=15, heads=3)


def test_concatenated_sinusoidal_positions_need_an_even_share() -> None:
    share = {"position_combine": "concatenate", "tie_output": False, "width": 16, "heads": 2}
    assert "width 5 is odd; use 6" in refusal(transformer, position_width=5, **share)
    assert transformer(position_width=6, **share).token_width == 10
    assert transformer(**share).token_width == 8


def test_concatenated_positions_must_leave_width_for_the_token() -> None:
    share = {"position_combine": "concatenate", "tie_output": False, "width": 16, "heads": 2}
    assert refusal(transformer, position_width=16, **share) == (
        "position_width 16 leaves no width for tokens; use less than width 16"
    )


@pytest.mark.parametrize("settings", [{"tie_output": True}, {"tie_output": False, "segments": 2}])
def test_concatenated_positions_cannot_share_the_table_with_the_output(settings: dict[str, Any]) -> None:
    message = refusal(transformer, position_combine="concatenate", **settings)
    assert "set tie_output=false and segments=0" in message


@pytest.mark.parametrize("name", ["decoder_layers", "target_vocabulary"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_encoder_decoder_settings_are_refused_for_other_families(name: str, family: str) -> None:
    message = refusal(transformer, family=family, **{name: 3})
    assert message == f"target_vocabulary and decoder_layers are for encoder_decoder, not {family}"


def test_a_bidirectional_encoder_needs_an_even_width() -> None:
    message = refusal(recurrent, width=15)
    assert message == "a bidirectional encoder halves its width: 15 is odd; use 16"
    assert recurrent(width=15, bidirectional=False)
    assert recurrent(width=15, family="recurrent_decoder")


def test_a_recurrent_decoder_has_no_target_vocabulary() -> None:
    assert "not recurrent_decoder" in refusal(recurrent, family="recurrent_decoder", target_vocabulary=5)


@pytest.mark.parametrize("config", [transformer(), recurrent()])
def test_a_configuration_is_frozen(config: TransformerConfig | RecurrentConfig) -> None:
    with pytest.raises(ValueError, match="frozen"):
        config.width = 5
    assert config.width == 512


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_round_trips_through_json(name: str) -> None:
    config = preset(name)
    assert make_config(json.loads(json.dumps(config.model_dump(mode="json")))) == config


def test_with_changes_makes_a_validated_copy() -> None:
    config = transformer(width=64, heads=4)
    changed = config.with_changes(heads=8)
    assert (changed.heads, changed.width, config.heads) == (8, 64, 4)
    assert "width 64 is not divisible by 7 heads" in refusal(config.with_changes, heads=7)
    assert "did you mean 'heads'?" in refusal(config.with_changes, head=8)


def test_resolved_settings_contain_no_implicit_defaults() -> None:
    usual = transformer(family="encoder_decoder", width=64, heads=4, layers=3, norm_order="pre").resolved()
    worked_out = {"head_width": 16, "value_width": 16, "key_value_heads": 4, "feed_forward": 256, "decoder_layers": 3}
    assert {**usual, **worked_out, "final_norm": True} == usual
    assert transformer().resolved()["final_norm"] is False
    assert transformer(norm_order="pre", final_norm=False).resolved()["final_norm"] is False
    assert transformer(norm_order="post", final_norm=True).resolved()["final_norm"] is True


def test_a_refusal_is_one_line_and_exits_with_2() -> None:
    with pytest.raises(UsageError) as caught:
        transformer(width=100, heads=8, color=3)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
