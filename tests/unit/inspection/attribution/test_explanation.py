"""Explanations: contents, text, files, and the faithfulness stored with a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful import Ablate, UsageError
from heedful.inspection.attribution.explanation import Explanation
from heedful.inspection.attribution.explanation_text import explanation_lines

Build = Callable[..., Any]
Texts = Callable[[str], list[str]]
TASKS = ("translate", "translate recurrent", "generate", "generate recurrent", "classify", "fill", "answer")
every_task = pytest.mark.parametrize("task", TASKS)


def explain(model: Any, task: str, texts_of: Texts) -> Explanation:
    """An explanation of a text, with a short target for generative tasks."""
    target = {"translate": "the green park", "generate": " runs in the park"}.get(task.split()[0])
    return model.explain(texts_of(task)[0], target)  # type: ignore[no-any-return]


@every_task
def test_an_explanation_as_json_has_the_faithfulness_of_every_method(
    small_model: Build, texts_of: Texts, task: str, tmp_path: Path
) -> None:
    explanation = explain(small_model(task), task, texts_of)
    content = explanation.to_json()
    assert json.loads(explanation.save(tmp_path / "why.json").read_text()) == json.loads(json.dumps(content))
    words = len(content["inputs"]["words"])
    for method in content["methods"]:
        assert method["faithfulness"].keys() >= {"area", "low", "high", "deletion", "insertion"}
        assert [len(row) for row in method["scores"]] == [words] * len(content["outputs"])
        for row, output in zip(method["scores"], content["outputs"], strict=True):
            assert [index for index, score in enumerate(row) if score is not None] == output["words"]
    assert {method["name"] for method in content["methods"]}.isdisjoint(content["unavailable"])
    assert content["most_faithful"] in {method["name"] for method in content["methods"]}


def test_probabilities_are_those_of_a_look(small_model: Build) -> None:
    model = small_model("translate")
    look, explanation = (call("a small dog", "the green park") for call in (model.look, model.explain))
    for output in explanation.outputs:
        expected = np.prod([shown.probability for shown in look.outputs if output.word in shown.words])
        assert output.probability == pytest.approx(float(expected), rel=1e-4)


def test_the_model_under_interventions_is_the_one_that_is_explained(small_model: Build) -> None:
    model = small_model("translate")
    off = [Ablate("decoder.1.cross")]
    plain = model.explain("a small dog", "the green park", faithfulness=False)
    changed = model.explain("a small dog", "the green park", faithfulness=False, interventions=off)
    again = model.explain("a small dog", "the green park", faithfulness=False)
    assert changed.interventions == ("decoder.1.cross off",)
    assert not np.allclose(plain.attributions["occlusion"].scores, changed.attributions["occlusion"].scores, atol=1e-4)
    np.testing.assert_allclose(
        plain.attributions["occlusion"].scores, again.attributions["occlusion"].scores, atol=1e-6
    )


def test_measured_faithfulness_is_stored_with_the_model_and_shown_for_each_method(
    small_model: Build, tmp_path: Path
) -> None:
    model = small_model("classify")
    model.measured_faithfulness = model.faithfulness(["a small dog runs", "two men ride a bicycle"])
    loaded = heedful.load(model.save(tmp_path / "model"), device="cpu")
    assert loaded.measured_faithfulness == model.measured_faithfulness
    explanation = loaded.explain("a dog runs", methods=["occlusion", "rollout"], faithfulness=False)
    best = next(
        method.method for method in loaded.measured_faithfulness.methods if method.method in ("occlusion", "rollout")
    )
    assert explanation.most_faithful == best
    assert explanation.attributions["occlusion"].validation == loaded.measured_faithfulness.of("occlusion")
    text = "\n".join(explanation_lines(explanation))
    assert str(loaded.measured_faithfulness.of("rollout")) in text


@every_task
def test_the_text_lists_every_input_word_and_every_method_with_its_faithfulness(
    small_model: Build, texts_of: Texts, task: str
) -> None:
    explanation = explain(small_model(task), task, texts_of)
    text = str(explanation)
    assert all(word in text for word in explanation.inputs.words)
    for name, attribution in explanation.attributions.items():
        assert any(line.startswith(name) and str(attribution.faithfulness) in line for line in text.splitlines())
    for name, reason in explanation.unavailable.items():
        assert f"no {name}: {reason}" in text


def test_the_table_wraps_at_the_width(small_model: Build) -> None:
    explanation = small_model("classify").explain("a small dog runs in the green park " * 3, faithfulness=False)
    lines = list(explanation_lines(explanation, 60))
    assert sum("0 a" in line for line in lines) == 1
    assert all(len(line) <= 60 for line in lines if "░" in line or "█" in line)
    assert "faithfulness not measured" in "\n".join(lines)


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
@pytest.mark.parametrize("word", [0, None])
def test_an_explanation_is_saved_as_page_or_picture(
    small_model: Build, tmp_path: Path, suffix: str, word: int | None
) -> None:
    explanation = small_model("translate").explain("a small <b> dog & co", "the green park", word=word)
    file = explanation.save(tmp_path / f"why{suffix}")
    content = file.read_bytes()
    assert content.startswith({".html": b"<!doctype html>", ".svg": b"<?xml", ".png": b"\x89PNG"}[suffix])
    if suffix == ".html":
        page = content.decode()
        assert "<b>" not in page
        assert "&lt;b&gt;" in page
        assert "http" not in page
        assert all(name in page for name in explanation.attributions)
    with pytest.raises(UsageError, match=r"unknown kind of file '.doc'"):
        explanation.save(tmp_path / "why.doc")


def test_an_output_that_depends_on_one_word_has_no_faithfulness(small_model: Build) -> None:
    model = small_model("classify")
    explanation = model.explain("dog")
    assert explanation.faithfulness is None
    assert "faithfulness not measured (one word has one order)" in "\n".join(explanation_lines(explanation))
    writer = small_model("generate")
    several = writer.explain("a small dog", "runs in the park", methods=["occlusion"])
    assert several.faithfulness is not None
    assert several.faithfulness.outputs == sum(len(output.words) > 1 for output in several.outputs)
