"""Faithfulness: areas between deletion and insertion curves and those of random orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heedful import UsageError
from heedful.inspection.attribution.explained_output import explained_outputs, output_log_probabilities
from heedful.inspection.attribution.faithfulness import RANDOM, CurveSettings, OutputCurves, measure_curves, summarize
from heedful.inspection.attribution.perturbation import hide_words

Build = Callable[..., Any]
TEXT, TARGET = "a small dog runs in the green park", "two men ride a bicycle"


def test_a_curve_is_the_probability_with_the_most_important_words_hidden_or_shown(small_model: Build) -> None:
    model = small_model("translate")
    outputs = explained_outputs(model.text_pass("a small dog runs", TARGET))[:2]
    order = np.array([2, 0, 3, 1])
    scores = [-order.argsort().astype(float)] * 2
    for output, curves in zip(outputs, measure_curves(model, outputs, {"test": scores}), strict=True):
        np.testing.assert_allclose(curves.fractions, [0, 0.25, 0.5, 0.75, 1])
        passes = [hide_words(model, output, order[:count].tolist()) for count in range(5)]
        np.testing.assert_allclose(curves.curves["test"][0], np.exp(output_log_probabilities(model, passes)), rtol=1e-4)
        passes = [hide_words(model, output, order[count:].tolist()) for count in range(5)]
        np.testing.assert_allclose(curves.curves["test"][1], np.exp(output_log_probabilities(model, passes)), rtol=1e-4)


@pytest.mark.parametrize("task", ["translate", "translate recurrent", "classify"])
def test_reversing_an_order_swaps_its_deletion_and_insertion_areas(small_model: Build, task: str) -> None:
    model = small_model(task)
    outputs = explained_outputs(model.text_pass(TEXT))[:3]
    generator = np.random.default_rng(0)
    scores = [generator.permutation(len(output.words)).astype(float) for output in outputs]
    for curves in measure_curves(model, outputs, {"order": scores, "reversed": [-row for row in scores]}):
        assert curves.areas("order") == pytest.approx(curves.areas("reversed")[::-1], rel=1e-4)


def test_a_search_for_the_best_order_is_more_faithful_than_chance(small_model: Build) -> None:
    """Among many random orders the one with the largest area has an area above 0, and its reverse one below 0."""
    model = small_model("translate")
    outputs = explained_outputs(model.text_pass(TEXT, TARGET))[:1]
    generator = np.random.default_rng(1)
    scores = {str(index): [generator.permutation(8).astype(float)] for index in range(30)}
    (curves,) = measure_curves(model, outputs, scores)
    best = max(scores, key=lambda name: curves.areas_between(name).mean())
    table = summarize(
        [measure_curves(model, outputs, {"best": scores[best], "worst": [-scores[best][0]]}, seed=7)], "removed"
    )
    assert [method.method for method in table.methods] == ["best", RANDOM, "worst"]
    assert table.best is not None
    assert table.best.method == "best"
    assert table.of("worst").high < 0  # type: ignore[union-attr]


def test_equal_scores_are_in_random_order(small_model: Build) -> None:
    model = small_model("classify")
    outputs = explained_outputs(model.text_pass(TEXT))
    curves = [measure_curves(model, outputs, {"constant": [np.zeros(8)]}, seed)[0] for seed in range(8)]
    assert len({tuple(curve.curves["constant"][0]) for curve in curves}) > 4


def test_long_inputs_have_curves_of_bounded_length(small_model: Build) -> None:
    model = small_model("classify")
    outputs = explained_outputs(model.text_pass(" ".join([TEXT] * 4)))
    (curves,) = measure_curves(model, outputs, {}, settings=CurveSettings(random_orders=3, points=5))
    assert curves.random.shape == (3, 2, 6)
    assert (curves.fractions[0], curves.fractions[-1]) == (0, 1)


def test_intervals_are_over_texts_and_contain_the_mean() -> None:
    generator = np.random.default_rng(0)
    fractions = np.array([0.0, 1.0])

    def output(area: float) -> OutputCurves:
        flat = np.array([[0.5 - area] * 2, [0.5 + area] * 2])
        return OutputCurves({"method": flat}, np.full((3, 2, 2), 0.5), fractions)

    areas = generator.normal(0.2, 0.1, 200)
    table = summarize([[output(area)] * 3 for area in areas], "removed")
    (method,) = table.methods
    assert (table.texts, table.outputs, table.resampled) == (200, 600, "texts")
    assert method.area == pytest.approx(areas.mean())
    expected = 1.96 * areas.std() / np.sqrt(200)
    assert (method.high - method.low) / 2 == pytest.approx(expected, rel=0.15)
    assert method.low < method.area < method.high
    assert method.deletion == pytest.approx(0.5 - areas.mean())
    assert summarize([[output(0.1), output(0.3)]], "removed").resampled == "outputs"
    assert summarize([[output(0.1)]], "removed").resampled == "random orders"


def test_faithfulness_of_several_texts_includes_a_random_order(small_model: Build) -> None:
    model = small_model("translate")
    done: list[int] = []
    table = model.faithfulness([TEXT, "two men ride a bicycle", "dog"], [TARGET] * 3, progress=done.append)
    assert {method.method for method in table.methods} >= {"occlusion", "aligned-head", RANDOM}
    assert [method.area for method in table.methods] == sorted([method.area for method in table.methods], reverse=True)
    assert table.texts == 2, "one word has no order"
    assert sum(done) == 3
    assert "8 outputs of 2 texts; hidden words are removed" in str(table)
    with pytest.raises(UsageError, match="depends on two words or more"):
        model.faithfulness(["dog"], [TARGET])
    with pytest.raises(UsageError, match="cannot be measured"):
        model.faithfulness([])


def test_running_text_is_explained_by_its_own_words(small_model: Build) -> None:
    filler, writer = small_model("fill"), small_model("generate")
    text_pass = filler.scored_passes(TEXT)[0]
    (masked,) = {token for output in text_pass.outputs for token in [output.position]}
    (output,) = explained_outputs(text_pass)
    assert sorted({*range(8)} - {*output.words}) == [*text_pass.inputs.word_ranges[masked]]
    assert filler.faithfulness([TEXT]).perturbation == "replaced by [MASK]"
    outputs = explained_outputs(writer.scored_passes(TEXT)[0])
    assert [output.text for output in outputs] == TEXT.split()[1:]
    assert writer.faithfulness([TEXT], outputs_per_text=2).outputs == 2


def test_all_labels_of_a_text_are_explained_together(small_model: Build) -> None:
    model = small_model("classify")
    model.settings = model.settings.with_changes(multi_label=True)
    first, second = model.settings.names
    together = explained_outputs(model.scored_passes((TEXT, f"{first}|{second}"))[0])[0]
    single = [explained_outputs(model.text_pass(TEXT, name))[0] for name in (first, second)]
    assert together.text == f"{first}, {second}"
    scores = output_log_probabilities(model, [output.text_pass for output in (together, *single)])
    assert scores[0] == pytest.approx(scores[1] + scores[2], abs=1e-5)
    with pytest.raises(UsageError, match="nothing to explain"):
        explained_outputs(model.scored_passes((TEXT, ""))[0])


def test_an_area_that_prints_as_zero_is_no_better_than_chance() -> None:
    fractions = np.array([0.0, 1.0])
    flat = np.array([[1e-5 - 1e-6] * 2, [1e-5 + 1e-6] * 2])
    output = OutputCurves({"occlusion": flat}, np.full((3, 2, 2), 1e-5), fractions)
    table = summarize([[output]] * 5, "removed")
    assert table.methods[0].low > 0
    assert table.best is None
    assert str(table.methods[0]) == "+0.000 (+0.000 to +0.000)"
