"""Attribution methods against their definitions, for models of every family and task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import Hide, UsageError
from heedful.inspection.attention_alignment import Alignment
from heedful.inspection.attribution.explained_output import ExplainedOutput, explained_outputs, output_log_probabilities
from heedful.inspection.attribution.gradients import completeness_gaps, gradient_times_input, integrated_gradients
from heedful.inspection.attribution.leave_out import leave_one_out, occlusion
from heedful.inspection.attribution.methods import ATTRIBUTION_METHODS, attribute, available_methods
from heedful.inspection.attribution.perturbation import hide_words

Build = Callable[..., Any]
Texts = Callable[[str], list[str]]
TASKS = ("translate", "translate recurrent", "generate", "generate recurrent", "classify", "fill", "answer")
every_task = pytest.mark.parametrize("task", TASKS)
TARGET = "the green park"


def log_probability(model: Any, text: str, word: int, **changes: Any) -> float:
    """log p of a word of TARGET, from a look."""
    outputs = model.look(text, TARGET, **changes).outputs
    return float(sum(np.log(output.probability) for output in outputs if word in output.words))


def last_outputs(model: Any, text: str) -> list[ExplainedOutput]:
    """The last outputs of a text; for a language model the words of the text itself."""
    text_pass = model.text_pass(text) if model.task == "fill" else model.scored_passes(text)[0]
    return explained_outputs(text_pass)[-3:]


@every_task
def test_every_available_method_scores_every_word(small_model: Build, texts_of: Texts, task: str) -> None:
    model = small_model(task)
    outputs = last_outputs(model, texts_of(task)[0])
    scores = attribute(model, outputs, available_methods(model))
    for rows in scores.values():
        assert [len(row) for row in rows] == [len(output.words) for output in outputs]
        assert all(np.isfinite(row).all() for row in rows)
    missing = {name for name, method in ATTRIBUTION_METHODS.items() if method.obstacle(model)}
    expected = {
        "translate": set(),
        "translate recurrent": {"rollout"},
        "generate recurrent": {"aligned-head", "leave-one-out", "mean-attention", "rollout"},
    }
    assert missing == expected.get(task, {"aligned-head", "leave-one-out"})


@every_task
def test_scores_of_an_output_do_not_depend_on_the_other_outputs(small_model: Build, texts_of: Texts, task: str) -> None:
    model = small_model(task)
    outputs = last_outputs(model, texts_of(task)[0])
    methods = available_methods(model)
    alone = attribute(model, outputs[-1:], methods)
    for name, rows in attribute(model, outputs, methods).items():
        np.testing.assert_allclose(alone[name][0], rows[-1], atol=2e-4, err_msg=name)


@every_task
def test_integrated_gradients_add_up_to_the_change_of_log_probability(
    small_model: Build, texts_of: Texts, task: str
) -> None:
    model = small_model(task)
    outputs = last_outputs(model, texts_of(task)[0])
    scores = integrated_gradients(model, outputs, 64)
    for gap, row in zip(completeness_gaps(model, outputs, scores), scores, strict=True):
        assert gap < 0.02 * np.abs(row).sum() + 1e-3


@pytest.mark.parametrize("task", ["translate", "translate recurrent"])
def test_occlusion_is_the_fall_of_log_probability_without_the_word(small_model: Build, task: str) -> None:
    model = small_model(task)
    outputs = explained_outputs(model.text_pass("a small dog runs", TARGET))
    for word, scores in enumerate(occlusion(model, outputs)):
        full = log_probability(model, "a small dog runs", word)
        for index, text in enumerate(["small dog runs", "a dog runs", "a small runs", "a small dog"]):
            assert scores[index] == pytest.approx(full - log_probability(model, text, word), abs=1e-4)


@pytest.mark.parametrize(("task", "head"), [("translate", 2), ("translate", None), ("translate recurrent", 0)])
def test_leave_one_out_is_the_fall_when_the_head_may_not_read_the_word(
    small_model: Build, task: str, head: int | None
) -> None:
    model = small_model(task)
    part = "cross" if "recurrent" in task else "decoder.1.cross"
    model.alignment = Alignment(tap=f"{part}.weights", head=head, row="output")
    outputs = explained_outputs(model.text_pass("a small dog runs", TARGET))
    hidden = part if head is None else f"{part}.head.{head}"
    for word, scores in enumerate(leave_one_out(model, outputs)):
        full = log_probability(model, "a small dog runs", word)
        for index, score in enumerate(scores):
            without = log_probability(model, "a small dog runs", word, interventions=[Hide(hidden, words=[index])])
            assert score == pytest.approx(full - without, abs=1e-4)


def test_gradient_times_input_is_the_gradient_at_the_embedding(small_model: Build) -> None:
    model = small_model("classify")
    text_pass = model.text_pass("a small dog runs")
    tokens = torch.tensor([text_pass.inputs.ids])
    vectors = model.model.table(tokens).detach().requires_grad_()
    with heedful.edit(model.model, {"embedding.tokens": vectors}):
        logits = model.model.apply_head("sequence_class", model.model.states(tokens), torch.tensor([tokens.shape[1]]))
    logits.log_softmax(-1)[0, text_pass.outputs[0].label].backward()
    expected = (vectors * vectors.grad).sum(-1)[0].detach().numpy()
    words = [text_pass.inputs.tokens_of_word(word) for word in range(4)]
    (scores,) = gradient_times_input(model, explained_outputs(text_pass))
    np.testing.assert_allclose(scores, [expected[word].sum() for word in words], atol=1e-5)


@pytest.mark.parametrize("head", [1, None])
def test_the_aligned_head_is_the_row_of_the_alignment(small_model: Build, head: int | None) -> None:
    model = small_model("translate")
    model.alignment = Alignment(tap="decoder.0.cross.weights", head=head, row="input")
    look = model.look("a small dog runs", TARGET)
    rows = attribute(model, explained_outputs(model.text_pass("a small dog runs", TARGET)), ["aligned-head"])
    np.testing.assert_allclose(rows["aligned-head"], look.alignment.weights[:, :-1], atol=1e-6)


def test_rollout_multiplies_the_layers_with_half_of_each_from_the_skip_connection(small_model: Build) -> None:
    model = small_model("fill")
    text_pass = model.text_pass("a small [MASK] runs")
    attention = model.look("a small [MASK] runs").attention.values()
    expected = np.eye(len(text_pass.inputs))
    for table in attention:
        expected = (table.weights.mean(0) + np.eye(len(expected))) / 2 @ expected
    (output,) = explained_outputs(text_pass)
    (scores,) = attribute(model, [output], ["rollout"])["rollout"]
    row = expected[text_pass.outputs[0].position]
    assert row.sum() == pytest.approx(1)
    np.testing.assert_allclose(scores, [row[list(tokens)].sum() for tokens in output.tokens_of_words], atol=1e-6)


def test_a_mean_over_heads_is_averaged_over_the_tokens_of_an_output_and_summed_over_those_of_a_word(
    small_model: Build,
) -> None:
    model = small_model("translate", layers=1)
    model.alignment = None
    text_pass = model.text_pass("a small dog", TARGET)
    (table,) = (attention.weights.mean(0) for attention in model.look("a small dog", TARGET).attention.values()
                if attention.kind == "cross")  # fmt: skip
    scores = attribute(model, explained_outputs(text_pass), ["mean-attention"])["mean-attention"]
    for output, row in zip(explained_outputs(text_pass), scores, strict=True):
        rows = table[[scored.position for scored in output.text_pass.outputs]].mean(0)
        np.testing.assert_allclose(row, [rows[list(t)].sum() for t in output.tokens_of_words], atol=1e-6)


def test_a_word_of_a_continuation_is_explained_by_the_words_before_it(small_model: Build) -> None:
    model = small_model("generate")
    outputs = explained_outputs(model.text_pass("a small dog", " runs in the"))
    assert [(output.text, output.word, output.words) for output in outputs] == [
        ("runs", 3, (0, 1, 2)), ("in", 4, (0, 1, 2, 3)), ("the", 5, (0, 1, 2, 3, 4)),
    ]  # fmt: skip
    full = model.look("a small dog", " runs in the")
    for output, probability in zip(
        outputs, output_log_probabilities(model, [output.text_pass for output in outputs]), strict=True
    ):
        expected = sum(np.log(scored.probability) for scored in full.outputs if output.word in scored.words)
        assert probability == pytest.approx(expected, abs=1e-4)


@every_task
def test_hiding_words_does_not_change_the_rest_of_the_pass(small_model: Build, texts_of: Texts, task: str) -> None:
    model = small_model(task)
    output = last_outputs(model, texts_of(task)[0])[-1]
    all_hidden = hide_words(model, output, range(len(output.words)))
    first_hidden = hide_words(model, output, [0])
    assert hide_words(model, output, []) is output.text_pass
    hidden = len(output.tokens_of_words[0])
    if model.occluding_token is None:
        assert len(first_hidden.inputs) == len(output.text_pass.inputs) - hidden
    else:
        assert (
            first_hidden.inputs.ids.count(model.occluding_token)
            - output.text_pass.inputs.ids.count(model.occluding_token)
            == hidden
        )
    for explained in (first_hidden, all_hidden):
        assert [o.label for o in explained.outputs] == [o.label for o in output.text_pass.outputs]
        assert all(0 <= o.position < len(explained.output_row) for o in explained.outputs)
        assert np.isfinite(output_log_probabilities(model, [explained])).all()


def test_an_output_that_cannot_be_explained_is_an_error_with_the_reason(
    small_model: Build, make_trained: Build
) -> None:
    translator, classifier = small_model("translate"), small_model("classify")
    with pytest.raises(UsageError, match="the output has no word 3: its words are 0 to 2"):
        translator.explain("a dog", TARGET, word=3)
    with pytest.raises(UsageError, match="leave the number of a word out"):
        classifier.explain("a dog", word=0)
    with pytest.raises(UsageError, match="no attribution method is called 'occlusin'; did you mean 'occlusion'"):
        translator.explain("a dog", methods=["occlusin"])
    with pytest.raises(UsageError, match=r"aligned-head cannot explain .*: only translators with attention"):
        classifier.explain("a dog", methods=["aligned-head"])
    with pytest.raises(UsageError, match=r"rollout cannot explain .*: a recurrent model has no layers"):
        small_model("translate recurrent").explain("a dog", methods=["rollout"])
    with pytest.raises(UsageError, match="makes vectors, not predictions"):
        small_model("encode").explain("a dog")
    with pytest.raises(UsageError, match="there is no word before 'dog'"):
        make_trained("laptop-writer").explain("do", "g")
    with pytest.raises(UsageError, match="has no words: there is nothing to explain"):
        translator.explain("a dog", "")
    with pytest.raises(UsageError, match="depends on the text, whose words are hidden"):
        translator.explain("a dog", interventions=[Hide("encoder", words=[0])])
