"""Weight × ‖value‖ of every head, against sums written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import UsageError
from heedful.inspection.value_weighted_attention import value_weighted_attention

Build = Callable[..., Any]


@pytest.mark.parametrize(
    ("task", "changes"), [("translate", {}), ("generate", {"key_value_heads": 2}), ("classify", {})]
)
def test_weights_are_multiplied_by_the_length_of_each_value_and_rows_sum_to_one(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str, changes: dict[str, Any]
) -> None:
    model, text = small_model(task, **changes), texts_of(task)[0]
    with torch.no_grad(), heedful.record(model.model, "*.values") as recorded:
        look = model.look(text)
    weighted = value_weighted_attention(model.model, model.text_pass(text, look.target and look.target.text))
    assert list(weighted) == list(look.attention)
    for name, part in weighted.items():
        plain, values = look.attention[name].weights, recorded[f"{name}.values"][0].numpy()
        assert part.weights.shape == plain.shape
        for head in range(part.heads):
            norms = np.linalg.norm(values[head * len(values) // part.heads], axis=-1)[: plain.shape[2]]
            expected = plain[head] * norms
            np.testing.assert_allclose(part.weights[head], expected / expected.sum(-1, keepdims=True), atol=1e-5)


def test_a_model_whose_attention_has_no_values_is_refused(small_model: Build) -> None:
    model = small_model("translate recurrent")
    with pytest.raises(UsageError, match="no value vectors"):
        value_weighted_attention(model.model, model.text_pass("a small dog"))
