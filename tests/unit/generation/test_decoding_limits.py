"""Absurd decoding options are refused with the value seen, before anything is allocated."""

from __future__ import annotations

from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.generation.decoding_config import DecodingConfig


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
