"""Attention tables of a look, over words or tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heedful import UsageError
from heedful.inspection.attention_table import attention_table, group_overlapping, pool_weights

Build = Callable[..., Any]


def test_without_a_part_a_translator_shows_its_aligned_words(small_model: Build) -> None:
    look = small_model("translate").look("a small dog runs", "the green park")
    table = attention_table(look)
    assert (table.rows, table.columns) == (("the", "green", "park"), ("a", "small", "dog", "runs", "∅"))
    np.testing.assert_array_equal(table.weights, look.alignment.weights)
    assert table.outputs == ((0,), (1,), (2,))


def test_a_head_is_named_by_number_or_by_part(small_model: Build) -> None:
    look = small_model("translate").look("a small dog runs", "the green park")
    by_number = attention_table(look, "decoder.1.cross", 2, "tokens")
    by_part = attention_table(look, "decoder.1.cross.head.2", unit="tokens")
    np.testing.assert_array_equal(by_number.weights, look.attention["decoder.1.cross"].weights[2])
    np.testing.assert_array_equal(by_number.weights, by_part.weights)
    assert by_number.rows == ("the", "green", "park", "</s>")
    assert by_number.title == "decoder.1.cross, head 2"
    mean = attention_table(look, "decoder.1.cross", unit="tokens")
    np.testing.assert_allclose(mean.weights, look.attention["decoder.1.cross"].weights.mean(0), atol=1e-6)


def test_self_attention_has_the_tokens_that_attend_in_its_rows(small_model: Build) -> None:
    look = small_model("translate").look("a small dog runs", "the green park")
    assert attention_table(look, "decoder.0.attention").rows == ("<s>", "the", "green", "park")
    assert attention_table(look, "encoder.0.attention").rows == ("a", "small", "dog", "runs", "</s>")


def test_weights_are_summed_over_key_tokens_and_averaged_over_query_tokens() -> None:
    assert group_overlapping([(), (0,), (0,), (1,), ()], "words") == [[0], [1, 2], [3], [4]]
    assert group_overlapping([(0, 1), (1,), (2,)], "words") == [[0, 1], [2]]
    assert group_overlapping([(0,), (0,)], "tokens") == [[0], [1]]
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], np.float32)
    pooled = pool_weights(weights, [[0, 1]], [[0, 1], [2]])
    np.testing.assert_allclose(pooled, [[0.5, 0.5]])


def test_a_model_without_attention_has_no_table_and_unknown_names_are_errors(small_model: Build) -> None:
    assert attention_table(small_model("generate recurrent").look("a dog")) is None
    with pytest.raises(UsageError, match="this model has no attention"):
        attention_table(small_model("generate recurrent").look("a dog"), "decoder.0.attention")
    look = small_model("translate").look("a dog")
    with pytest.raises(
        UsageError, match=r"called 'decoder.1.cros'; did you mean 'decoder.1.cross', .* or .*All are listed by"
    ):
        attention_table(look, "decoder.1.cros")
    with pytest.raises(UsageError, match=r"no head 9 in decoder.1.cross: it has heads 0 to 3"):
        attention_table(look, "decoder.1.cross", 9)
    with pytest.raises(UsageError, match=r"no head 4 in decoder.1.cross: it has heads 0 to 3"):
        attention_table(look, "decoder.1.cross.head.4")
    with pytest.raises(UsageError, match="names one head already"):
        attention_table(look, "decoder.1.cross.head.1", 2)
