"""Look: values recorded from a forward pass, for every family and task, alone or in a batch."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import Ablate, Hide, UsageError
from heedful.inspection.attention_alignment import Alignment, align
from heedful.inspection.look_result import Look
from heedful.text.word_tokens import tokenize_words, words_from_tokens

Build = Callable[..., Any]
TASKS = (
    "translate", "translate recurrent", "generate", "generate recurrent", "classify", "fill", "answer", "encode",
)  # fmt: skip
every_task = pytest.mark.parametrize("task", TASKS)


@every_task
def test_looks_do_not_depend_on_the_batch(small_model: Build, texts_of: Callable[[str], list[str]], task: str) -> None:
    model, texts = small_model(task), texts_of(task)
    for look, text in zip(model.look(texts), texts, strict=True):
        alone = model.look(text)
        assert (look.inputs, look.target, look.output_text) == (alone.inputs, alone.target, alone.output_text)
        for ours, expected in zip(look.outputs, alone.outputs, strict=True):
            assert ours.probability == pytest.approx(expected.probability, abs=1e-5)
        assert look.attention.keys() == alone.attention.keys()
        for name, table in look.attention.items():
            np.testing.assert_allclose(table.weights, alone.attention[name].weights, atol=1e-5)


@every_task
def test_every_attention_has_a_row_for_each_token_that_attends_and_rows_sum_to_one(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str
) -> None:
    model = small_model(task)
    look = model.look(texts_of(task)[0])
    taps = [name.removesuffix(".weights") for name in heedful.tap_names(model.model) if name.endswith(".weights")]
    assert list(look.attention) == taps
    for table in look.attention.values():
        assert table.weights.shape[1:] == (len(look.row(table.rows)), len(look.row(table.columns)))
        np.testing.assert_allclose(table.weights.sum(-1), 1, atol=1e-5)


def test_weights_are_those_of_the_model_s_own_pass(small_model: Build) -> None:
    model = small_model("translate")
    look = model.look("a small dog", "the green park")
    source, target = (torch.tensor([row.ids]) for row in (look.inputs, look.target))
    with torch.no_grad(), heedful.record(model.model, "*.weights") as recorded:
        logits = model.model(source, target)[0]
    for name, table in look.attention.items():
        np.testing.assert_allclose(table.weights, recorded[f"{name}.weights"][0], atol=1e-5)
    expected = logits.softmax(-1)[range(len(look.outputs)), [output.label for output in look.outputs]]
    np.testing.assert_allclose([output.probability for output in look.outputs], expected, atol=1e-5)
    assert [output.text.strip() for output in look.outputs] == ["the", "green", "park", "</s>"]
    kinds = {
        name: (attention.kind, attention.rows, attention.columns, attention.layer)
        for name, attention in look.attention.items()
    }
    assert kinds["encoder.1.attention"] == ("encoder", "inputs", "inputs", 1)
    assert kinds["decoder.0.attention"] == ("self", "target", "target", 0)
    assert kinds["decoder.1.cross"] == ("cross", "target", "inputs", 1)


def test_without_a_target_the_answer_is_the_one_the_model_gives(
    small_model: Build, texts_of: Callable[[str], list[str]]
) -> None:
    translator, classifier, filler, answerer = map(small_model, ("translate", "classify", "fill", "answer"))
    off = [Ablate("encoder.0")]
    for changes in (None, off):
        look = translator.look(texts_of("translate"), interventions=changes)
        translations = translator.translate(texts_of("translate"), interventions=changes)
        assert [result.output_text for result in look] == translations
        label = classifier.classify("a small dog", interventions=changes).ranking[0]
        (output,) = classifier.look("a small dog", interventions=changes).outputs
        assert (output.text, output.probability) == (label.name, pytest.approx(label.probability, abs=1e-5))
        (guess, *_), *_ = filler.fill("a [MASK] runs", interventions=changes).guesses
        (output,) = filler.look("a [MASK] runs", interventions=changes).outputs
        assert (output.text.strip(), output.probability) == (guess.word, pytest.approx(guess.probability, abs=1e-5))
        answer = answerer.answer("who runs", "a boy in a blue shirt runs", interventions=changes).spans[0]
        first, last = answerer.look(texts_of("answer")[0], interventions=changes).outputs
        assert answer.text.startswith(first.text.strip())
        assert answer.text.endswith(last.text.strip())
    assert [str(intervention) for intervention in look[0].interventions] == ["encoder.0 off"]


def test_hidden_words_have_no_weight_and_the_look_lists_the_interventions(small_model: Build) -> None:
    model = small_model("translate")
    texts = ["a small dog runs", "two men ride a bicycle"]
    for look in model.look(texts, interventions=[Hide("decoder.*.cross", words=[1])]):
        assert look.interventions == ("decoder.*.cross may not read word 1",)
        (token,) = look.inputs.tokens_of_word(1)
        assert not look.attention["decoder.0.cross"].weights[:, :, token].any()
        assert look.attention["encoder.0.attention"].weights[:, :, token].any()


@pytest.mark.parametrize("head", [0, None])
def test_the_alignment_is_that_of_the_translator_s_head(small_model: Build, head: int | None) -> None:
    model = small_model("translate")
    model.alignment = Alignment(tap="decoder.0.cross.weights", head=head, row="input")
    look = model.look("a small dog runs", "the green park")
    pair = (tokenize_words("a small dog runs", model.tokenizer), tokenize_words("the green park", model.tokenizer))
    (expected,) = align(model.model, model.alignment, [pair])
    assert (look.alignment.part, look.alignment.head) == ("decoder.0.cross", head)
    np.testing.assert_allclose(look.alignment.weights, expected.weights, atol=1e-5)
    assert look.alignment.links == expected.links
    assert small_model("translate recurrent", attention="none").look("a dog").alignment is None
    assert small_model("generate").look("a dog").alignment is None


def test_the_look_is_of_the_best_hypothesis_of_the_beam(small_model: Build) -> None:
    model = small_model("translate")
    text = "two men ride a bicycle"
    (translation,) = model.iter_translate([text], engine="torch")
    look = model.look(text)
    assert look.output_text == translation.text
    words = words_from_tokens(look.target.ids[1:], model.tokenizer)
    assert [words.words[i] for output in look.outputs for i in output.words] == [
        word.text for word in translation.words
    ]


@every_task
def test_a_look_is_json_with_its_weights_as_bytes_or_lists(
    small_model: Build, texts_of: Callable[[str], list[str]], task: str, tmp_path: Path
) -> None:
    look: Look = small_model(task).look(texts_of(task)[0], lens=task != "encode")
    compact, plain = look.to_json(), look.to_json("list")
    assert json.loads(look.save(tmp_path / "look.json").read_text()) == json.loads(json.dumps(plain))
    assert compact.keys() >= {"model", "task", "inputs", "target", "outputs", "attention", "alignment", "interventions"}
    for coded, listed, table in zip(compact["attention"], plain["attention"], look.attention.values(), strict=True):
        weights = np.frombuffer(b64decode(coded["data"]), "<f4").reshape(coded["shape"])
        np.testing.assert_array_equal(weights, table.weights)
        np.testing.assert_allclose(listed["data"], weights, atol=1e-6)


def test_wrong_arguments_are_errors_with_advice(small_model: Build, tmp_path: Path) -> None:
    model = small_model("translate")
    with pytest.raises(UsageError, match="a list of texts takes a list of targets"):
        model.look(["a dog"], "ein Hund")
    with pytest.raises(UsageError, match="a list of 2 texts one for each"):
        model.look(["a dog", "two men"], ["ein Hund"])
    with pytest.raises(UsageError, match="top must be positive"):
        model.look("a dog", top=0)
    with pytest.raises(UsageError, match=r"unknown kind of file '\.gif'"):
        model.look("a dog").save(tmp_path / "look.gif")
    with pytest.raises(UsageError, match="look at a part of it"):
        small_model("generate", positions="learned", max_length=4).look("a small dog runs in the green park")


def test_the_answer_of_a_look_equals_the_model_s_answer(small_model: Callable[..., Any]) -> None:
    text = "who rides\ttwo men ride a bicycle"
    assert small_model("answer").look(text, "men ride").output_text == "men ride"
    filled = small_model("fill").look("two [MASK] ride a [MASK]")
    assert filled.output_text == ", ".join(output.text.strip() for output in filled.outputs)
    comparison = heedful.compare(small_model("answer"), small_model("answer", layers=1), text)
    assert None not in comparison.of_other, "each reads the other's answer"
