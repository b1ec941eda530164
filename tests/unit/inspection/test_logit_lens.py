"""Logit lens: every layer's state through the last norm and the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import heedful
from heedful import UsageError

Build = Callable[..., Any]
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("translate", {}, ["embeddings", "decoder.0", "decoder.1"]),
    ("translate", {"norm_order": "post"}, ["embeddings", "decoder.0", "decoder.1"]),
    ("translate recurrent", {"layers": 2}, ["decoder.0", "decoder.1"]),
    ("translate recurrent", {"attention": "none", "cell": "lstm"}, ["decoder.0"]),
    ("generate", {"positions": "rotary"}, ["embeddings", "decoder.0", "decoder.1"]),
    ("generate recurrent", {"layers": 3}, ["decoder.0", "decoder.1", "decoder.2"]),
    ("classify", {}, ["embeddings", "encoder.0", "encoder.1"]),
    ("fill", {}, ["embeddings", "encoder.0", "encoder.1"]),
    ("answer", {"norm_order": "pre"}, ["embeddings", "encoder.0", "encoder.1"]),
]


@pytest.mark.parametrize(("task", "changes", "names"), CASES)
def test_every_layer_has_predictions_and_the_last_layer_s_are_the_model_s(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str, changes: dict[str, Any], names: list[str]
) -> None:
    for look in small_model(task, **changes).look(texts_of(task), lens=True):
        assert [layer.name for layer in look.lens.layers] == names
        for layer in look.lens.layers:
            assert len(layer.outputs) == len(look.outputs)
            for output in layer.outputs:
                assert output.rank == 0 or output.probability <= output.top[0].probability
        for ours, output in zip(look.lens.layers[-1].outputs, look.outputs, strict=True):
            assert ours.probability == pytest.approx(output.probability, abs=1e-5)
            assert [prediction.label for prediction in ours.top] == [prediction.label for prediction in output.top]
        first, last = look.lens.layers[0], look.lens.layers[-1]
        if len(names) > 1:
            assert [output.top[0].probability for output in first.outputs] != [
                e.top[0].probability for e in last.outputs
            ]


def test_a_layer_s_predictions_are_those_of_the_model_truncated_after_it(small_model: Build) -> None:
    model = small_model("generate")
    look = model.look("a small dog", "", lens=True)
    tokens = torch.tensor([look.inputs.ids])
    with torch.no_grad(), heedful.record(model.model, "decoder.0.feed_forward.residual") as recorded:
        model.model(tokens)
        with heedful.edit(
            model.model, {"decoder.1.feed_forward.residual": recorded["decoder.0.feed_forward.residual"]}
        ):
            probabilities = model.model(tokens)[0].softmax(-1)
    layer = next(layer for layer in look.lens.layers if layer.name == "decoder.0")
    for output, lens in zip(look.outputs, layer.outputs, strict=True):
        assert lens.probability == pytest.approx(float(probabilities[output.position, output.label]), abs=1e-5)


def test_a_model_without_a_head_has_no_lens(small_model: Build) -> None:
    with pytest.raises(UsageError, match="has no head to read its layers by"):
        small_model("encode").look("a dog", lens=True)
