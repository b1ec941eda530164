"""The numbers of a walkthrough satisfy the equations of its layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heedful.errors import UsageError
from heedful.inspection.walkthrough import Walkthrough, walkthrough

MakeModel = Callable[..., Any]


def walk(trained: Any, text: str, **choice: Any) -> Walkthrough:
    return walkthrough(trained, trained.text_pass(text), **choice)


@pytest.mark.parametrize("task", ["translate", "generate", "classify"])
def test_scores_weights_and_values_are_consistent(small_model: MakeModel, texts_of: Any, task: str) -> None:
    numbers = walk(small_model(task), texts_of(task)[0], layer=1, position=2, head=1)
    for step in numbers.attention.values():
        scores = np.array([-np.inf if score is None else score for score in step.scores])
        expected = np.array(step.keys) @ np.array(step.query) / np.sqrt(len(step.query))
        np.testing.assert_allclose(scores[np.isfinite(scores)], expected[np.isfinite(scores)], atol=1e-4)
        powers = np.exp(scores - scores.max())
        np.testing.assert_allclose(step.weights, powers / powers.sum(), atol=1e-4)
        np.testing.assert_allclose(step.output, np.array(step.weights) @ np.array(step.values), atol=1e-4)


def test_the_skip_connection_adds(small_model: MakeModel, texts_of: Any) -> None:
    vectors = walk(small_model("translate"), texts_of("translate")[0], position=1).vectors
    for part in ("attention", "cross", "feed_forward"):
        added = np.add(vectors[f"{part}.skip"], vectors[f"{part}.output"])
        np.testing.assert_allclose(vectors[f"{part}.residual"], added, atol=1e-4)


def test_a_causal_mask_leaves_no_score_for_later_tokens(small_model: MakeModel, texts_of: Any) -> None:
    step = walk(small_model("generate"), texts_of("generate")[0], position=1).attention["attention"]
    assert [score is None for score in step.scores] == [index > 1 for index in range(len(step.scores))]


def test_the_walkthrough_predicts_the_model_s_token(small_model: MakeModel, texts_of: Any) -> None:
    trained, text = small_model("translate"), texts_of("translate")[0]
    top = walk(trained, text, position=0).top
    expected = trained.look(text).outputs[0].top[0]
    assert top[0][0] == expected.text
    assert top[0][1] == pytest.approx(expected.probability, abs=1e-5)


def test_an_unknown_layer_head_or_position_is_refused(small_model: MakeModel, texts_of: Any) -> None:
    trained, text = small_model("translate"), texts_of("translate")[0]
    for choice in ({"layer": 9}, {"position": 99}, {"head": 9}):
        with pytest.raises(UsageError, match="there is no"):
            walk(trained, text, **choice)
    with pytest.raises(UsageError, match=r"no \w+ layers to walk"):
        walk(small_model("translate recurrent"), text)
