"""Blocks whose parts are missing or differ: skip, norm, heads and feed-forward of single sub-layers (B7)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful import TransformerConfig, UsageError


def config(family: str = "encoder_decoder", *sublayers: dict[str, Any], **settings: Any) -> TransformerConfig:
    size = {"vocabulary": 40, "width": 32, "heads": 4, "layers": 2, "dropout": 0.0}
    return TransformerConfig(**{"family": family, **size, "sublayers": sublayers, **settings})


def test_without_feed_forward_and_norm_a_block_is_attention_with_a_plain_skip() -> None:
    model = heedful.build(config("encoder", feed_forward=0, norm="none", layers=1))
    assert [name for name, _ in model.encoder.named_parameters() if ".attention." not in name] == []
    with heedful.record(model, "embedding", "encoder.0.attention.output") as recorded:
        states = model(torch.tensor([[7, 8, 9]]))
    assert torch.equal(states, recorded["embedding"] + recorded["encoder.0.attention.output"])


def test_the_norm_keeps_its_bias_without_other_biases() -> None:
    model = heedful.build(config(bias=False, norm_bias=True))
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert biases
    assert all(name.endswith("norm.bias") for name in biases)


def test_the_identity_activation_makes_the_feed_forward_network_linear() -> None:
    network = heedful.build(config("encoder", activation="identity")).encoder.blocks[0].feed_forward
    x, y = torch.randn(1, 3, 32), torch.randn(1, 3, 32)
    torch.testing.assert_close(network(x + y) + network(0 * x), network(x) + network(y))


def test_settings_of_one_sublayer_leave_the_others_alone() -> None:
    changed = config(
        "encoder_decoder",
        {"part": "decoder.*.cross", "skip": False},
        {"part": "decoder.1", "norm": "rms", "heads": 2},
        {"part": "decoder.1.cross", "heads": 3},
        {"part": "encoder.0.feed_forward", "feed_forward": 8},
    )
    model = heedful.build(changed)
    first, second = model.decoder.blocks
    assert [residual.skip for residual in first.residual] == [True, False, True]
    assert [type(residual.norm) for residual in second.residual] == [torch.nn.RMSNorm] * 3
    assert (first.attention.heads, second.attention.heads, second.cross.heads) == (4, 2, 3)
    assert second.attention.d_k == first.attention.d_k == 8
    assert [block.feed_forward.inward.out_features for block in model.encoder.blocks] == [8, 128]
    plain = heedful.build(config())
    assert {name: weight.shape for name, weight in plain.encoder.blocks[1].named_parameters()} == {
        name: weight.shape for name, weight in model.encoder.blocks[1].named_parameters()
    }


def test_a_missing_sublayer_has_no_weights_no_part_and_no_tap() -> None:
    parts = [{"part": "encoder.0.feed_forward", "feed_forward": 0}, {"part": "decoder.1.cross", "heads": 0}]
    model = heedful.build(config("encoder_decoder", *parts))
    for missing in ("encoder.0.feed_forward", "decoder.1.cross"):
        assert not [name for name in heedful.tap_names(model) if name.startswith(missing)]
        with pytest.raises(UsageError, match=f"no part of this model is called '{missing}'"):
            heedful.intervene(model, [heedful.Ablate(missing)]).__enter__()
    with heedful.intervene(model, [heedful.Ablate("encoder.0"), heedful.Ablate("decoder.*.cross")]):
        changed = model(torch.tensor([[7, 8]]), torch.tensor([[9, 10]]))
    assert not torch.equal(changed, model(torch.tensor([[7, 8]]), torch.tensor([[9, 10]])))


@pytest.mark.parametrize(
    ("sublayers", "message"),
    [
        ([{"part": "decoder.0.cros", "skip": False}], "no sub-layer is called 'decoder.0.cros'; did you mean"),
        ([{"part": "decoder.2", "skip": False}], "no sub-layer is called 'decoder.2'"),
        ([{"part": "encoder.0.attention", "feed_forward": 3}], "'encoder.0.attention' has no feed_forward"),
        ([{"part": "*.feed_forward", "heads": 3}], "has no heads; heads belongs to attention and cross"),
        ([{"part": "encoder.0"}], "'encoder.0' sets nothing; set skip, norm, heads, feed_forward"),
        ([{"part": "encoder.0", "heads": 0, "feed_forward": 0}], "encoder.0 has neither attention nor a feed-forward"),
        ([{"part": "encoder.0", "norm": "batch"}], "norm: input should be 'layer', 'rms' or 'none'"),
        ([{"part": "encoder.0", "skp": False}], "sublayers.0: unknown setting 'skp'; did you mean 'skip'?"),
    ],
)
def test_settings_of_no_sublayer_are_refused(sublayers: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        config("encoder_decoder", *sublayers)
    assert message in str(caught.value)


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="3 heads cannot share 2 key/value heads evenly"):
        config("decoder", {"part": "decoder.0", "heads": 3}, key_value_heads=2)
    with pytest.raises(UsageError, match=r"alibi has a slope for each of 4 heads; decoder.0.attention has 3"):
        config("decoder", {"part": "decoder.0", "heads": 3}, positions="alibi")
    with pytest.raises(UsageError, match="norm 'rms' has no bias"):
        config(norm="rms", norm_bias=True)
    with pytest.raises(UsageError, match=r"encoder.0 has neither attention nor a feed-forward network"):
        config("encoder", {"part": "*.attention", "heads": 0}, feed_forward=0)
