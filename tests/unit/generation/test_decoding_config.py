"""Decoding options: contradictions are refused in one line, and defaults follow from the other options."""

from __future__ import annotations

from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.generation.decoding_config import DecodingConfig, prompt_decoding_config

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"beam": 4, "temperature": 0.7}, "beam 4 .* temperature 0.7"),
    ({"top_k": 5}, "top_k .* give a temperature"),
    ({"top_p": 0.9}, "top_p .* give a temperature"),
    ({"min_p": 0.1}, "min_p .* give a temperature"),
    ({"beam": 2, "n_best": 3}, "a beam of 2 has no 3 best"),
    ({"min_length": 9, "max_length": 5}, "min_length 9 is more than max_length 5"),
    ({"stop": ("",)}, "stop string must not be empty"),
    ({"forbidden": ("",)}, "forbidden string must not be empty"),
    ({"prefix": "Das Haus", "forbidden": ("Haus",)}, "prefix 'Das Haus' contains the forbidden string 'Haus'"),
    ({"prefix": "a\nb", "stop": ("\n",)}, "prefix .* contains the stop string"),
    ({"stop": ("x",), "forbidden": ("x",)}, "'x' cannot be both"),
    ({"int8": True, "engine": "torch"}, "int8 needs CTranslate2"),
    ({"beam": 0}, "beam"),
    ({"length_penalty": -1.0}, "length_penalty"),
    ({"temperature": -1.0}, "temperature"),
    ({"temperature": 1.0, "top_p": 0.0}, "top_p"),
    ({"temperature": 1.0, "top_k": -1}, "top_k"),
    ({"temperature": 1.0, "min_p": 1.5}, "min_p"),
    ({"temprature": 1.0}, "did you mean 'temperature'"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS)
def test_contradictory_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        DecodingConfig(**options)
    assert "\n" not in str(caught.value).replace(r"\n", "")


def test_default_beam_depends_on_the_other_options() -> None:
    assert DecodingConfig().beam_size() == 4
    assert DecodingConfig(n_best=6).beam_size() == 6
    assert DecodingConfig(temperature=0.7, n_best=6).beam_size() == 1
    assert DecodingConfig(beam=2).beam_size() == 2
    assert prompt_decoding_config({}).beam_size(1) == 1


def test_prompts_are_continued_by_sampling_unless_a_beam_is_given() -> None:
    assert prompt_decoding_config({}).sampling is not None
    assert prompt_decoding_config({"beam": 3}).sampling is None
    assert prompt_decoding_config({"temperature": 0.0}).sampling is None


@pytest.mark.parametrize(
    "option",
    [
        {"beam": 1_000_000},
        {"n_best": 1_000_000},
        {"length_penalty": 1e30},
        {"max_length": 10**400},
        {"min_length": 10**12},
        {"temperature": float("inf")},
        {"repetition_penalty": float("nan")},
        {"seed": 2**70},
        {"top_k": 2**70, "temperature": 1.0},
        {"stop": ("\udcff",)},
        {"prefix": "\udcff"},
    ],
)
def test_a_value_out_of_range_is_one_line_with_its_name(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))) as error:
        DecodingConfig(**option)
    assert len(str(error.value)) < 200
