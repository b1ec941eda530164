"""Presets: well-known models by name, with the parameters their papers and files have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful import PRESETS, RecurrentConfig, TransformerConfig, UsageError, build, count_parameters, preset

# The paper's table 3 rounds its base to 65M and its big to 213M; the other known ones are the sizes of the
# files their authors published.
PARAMETERS = {
    "paper-base": 63_082_496,
    "paper-big": 214_245_376,
    "bert-tiny": 4_385_920,
    "bert-mini": 11_170_560,
    "bert-small": 28_763_648,
    "bert-medium": 41_373_184,
    "bert-base": 109_482_240,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-135m": 134_515_008,
    "llama-7b": 6_738_415_616,
    "laptop-translator": 7_578_624,
    "laptop-writer": 5_207_552,
    "laptop-reader": 5_281_856,
    "recurrent-translator": 3_001_856,
    "recurrent-bottleneck": 2_936_320,
    "recurrent-writer": 3_100_672,
}
SMALL = [name for name, size in PARAMETERS.items() if size < 8_000_000]


def test_every_preset_has_an_expected_parameter_count() -> None:
    assert set(PARAMETERS) == set(PRESETS)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_a_preset_has_exactly_its_parameters(name: str, parameters: int) -> None:
    assert count_parameters(name).total == parameters


def test_the_papers_base_model_is_the_sum_of_its_parts() -> None:
    """d = 512, m = 2048, six blocks on each side, one table of 37,000."""
    d, m, blocks, table = 512, 2048, 6, 37_000 * 512
    attention, feed_forward, norm = 4 * (d * d + d), d * m + m + m * d + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert count_parameters("paper-base").total == table + blocks * (encoder + decoder)


def test_a_preset_can_be_changed() -> None:
    changed = preset("gpt2", layers=4)
    block = (count_parameters("gpt2").total - count_parameters("gpt2", layers=11).total) * 8
    assert count_parameters(changed).total == PARAMETERS["gpt2"] - block
    assert preset("gpt2").model_dump() | {"layers": 4} == changed.model_dump()
    assert PRESETS["gpt2"]["layers"] == 12


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_its_family(name: str) -> None:
    config = preset(name)
    assert isinstance(config, RecurrentConfig if name.startswith("recurrent") else TransformerConfig)
    assert config.family == PRESETS[name]["family"]


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_a_small_preset_runs(name: str) -> None:
    model = build(name).eval()
    tokens: Any = torch.randint(0, model.config.vocabulary, (2, 6))
    two_texts = model.config.family.endswith("encoder_decoder")
    out = model(tokens, tokens[:, :4]) if two_texts else model(tokens)
    reads_only = model.config.family == "encoder"
    assert out.shape == (2, 4 if two_texts else 6, model.config.width if reads_only else model.config.vocabulary)
    assert out.isfinite().all()


def test_an_unknown_preset_gets_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'gpt-2'; did you mean 'gpt2'\?"):
        build("gpt-2")
    with pytest.raises(UsageError, match=r"unknown preset 'zzz'; known: .*paper-base"):
        preset("zzz")


def test_a_misspelled_change_gets_the_nearest_setting() -> None:
    with pytest.raises(UsageError, match=r"unknown setting 'layer'; did you mean 'layers'\?"):
        build("gpt2", layer=3)
