"""Two models side by side, on a text and on held-out files."""

from __future__ import annotations

import json
import re
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import UsageError
from heedful.evaluation.comparison_text import comparison_lines, file_comparison_lines
from heedful.evaluation.file_comparison import length_buckets
from heedful.inspection.look_text import display_width
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = ["a small dog runs in the green park", "two men ride a bicycle", "a boy in a blue shirt runs"]
PAIRS = {
    "translate": ("laptop-translator", "recurrent-translator"),
    "generate": ("laptop-writer", "recurrent-writer"),
    "classify": ("laptop-reader", "laptop-reader"),
    "fill": ("laptop-reader", "laptop-reader"),
}
HEADS = {"classify": ["sequence_class"], "fill": ["masked_token"]}
every_task = pytest.mark.parametrize("task", PAIRS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=60))


def build(tokenizer: Tokenizer, task: str, side: int) -> Any:
    preset = PAIRS[task][side]
    torch.manual_seed(side + 4)
    sizes: dict[str, Any] = {"width": 32} if preset.startswith("recurrent") else {"width": 32, "heads": 4, "layers": 2}
    heads = {"tasks": HEADS[task]} if task in HEADS else {"tie_output": False}
    model = heedful.build(preset, vocabulary=len(tokenizer), **sizes, **heads).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(1.6)
        if task == "translate":
            (model.next_token if preset.startswith("recurrent") else model.heads.next_token).weight.mul_(3)
    return wrap_model(model, (tokenizer,))


def write_lines(file: Path, lines: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@every_task
def test_every_task_is_compared_as_text_page_picture_and_json(tokenizer: Tokenizer, task: str, tmp_path: Path) -> None:
    first, second = (build(tokenizer, task, side) for side in (0, 1))
    text = "a small [MASK] runs" if task == "fill" else TEXTS[0]
    comparison = heedful.compare(first, second, text)
    lines = list(comparison_lines(comparison, 120))
    assert any("│" in line for line in lines)
    assert all(display_width(line) <= 120 for line in lines if "│" in line)
    page = comparison.save(tmp_path / "compare.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert (
        data
        == json.loads(json.dumps(comparison.to_json()))
        == json.loads(comparison.save(tmp_path / "compare.json").read_text(encoding="utf-8"))
    )
    assert [model["look"]["outputs"] for model in data["models"]] == [
        json.loads(json.dumps(model.look(text).to_json()))["outputs"] for model in (first, second)
    ]
    assert not re.search(r"""(?:src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(""", page)
    assert comparison.save(tmp_path / "compare.svg").stat().st_size > 2000
    assert comparison._repr_html_().startswith("<iframe srcdoc=")


def test_each_model_scores_both_answers_and_differing_words_are_marked(tokenizer: Tokenizer) -> None:
    first, second = (build(tokenizer, "translate", side) for side in (0, 1))
    comparison = heedful.compare(first, second, TEXTS[1])
    first_look, second_look = comparison.looks
    expected = sum(log(output.probability) for output in first.look(TEXTS[1], second_look.output_text).outputs)
    assert comparison.of_other[0] == pytest.approx(expected, abs=1e-4)
    assert comparison.log_probabilities[0] == pytest.approx(
        sum(log(output.probability) for output in first_look.outputs)
    )
    kept = [
        [word for index, word in enumerate(look.target.words) if index not in different]
        for look, different in zip(comparison.looks, comparison.differing_words(), strict=True)
    ]
    assert kept[0] == kept[1]
    assert comparison.differing_words() != (frozenset(), frozenset())
    same_model = heedful.compare(first, first, TEXTS[1])
    assert (same_model.same_answer, same_model.differing_words()) == (True, (frozenset(), frozenset()))
    assert same_model.names == ("translator (first)", "translator (second)")
    assert "the same answer" in list(comparison_lines(same_model))


def test_models_of_two_tasks_and_tasks_without_file_scores_are_errors(tokenizer: Tokenizer, tmp_path: Path) -> None:
    translator, generator = build(tokenizer, "translate", 0), build(tokenizer, "generate", 0)
    with pytest.raises(UsageError, match=r"is a translator and .* is a language model: compare two models of one task"):
        heedful.compare(translator, generator, "a dog")
    with pytest.raises(UsageError, match="files are compared for translators and classifiers, and"):
        heedful.compare_files(generator, generator, tmp_path / "a")
    with pytest.raises(UsageError, match="nothing to compare on"):
        heedful.compare_files(translator, translator)
    with pytest.raises(UsageError, match=r"unknown kind of file '\.gif'"):
        heedful.compare(translator, translator, "a dog").save(tmp_path / "x.gif")


def test_translators_are_compared_by_length_with_intervals(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = (build(tokenizer, "translate", side) for side in (0, 1))
    sources = [" ".join(TEXTS[0].split()[: 2 + index % 6]) for index in range(60)]
    references = first.translate(sources)
    write_lines(tmp_path / "a", sources)
    write_lines(tmp_path / "b", references)
    result = heedful.compare_files(first, second, tmp_path / "a", tmp_path / "b")
    assert result.overall.scores[0] == pytest.approx(100.0)
    assert result.overall.bleu[0] >= result.overall.bleu[1]
    assert result.overall.difference.high < 0
    assert result.overall.difference.excludes_zero
    assert sum(bucket.texts for bucket in result.buckets) == result.texts == 60
    assert [bucket.shortest for bucket in result.buckets] == sorted(bucket.shortest for bucket in result.buckets)
    mean = sum(bucket.scores[1] * bucket.texts for bucket in result.buckets) / 60
    assert result.overall.scores[1] == pytest.approx(mean)
    worst = max(result.examples, key=lambda example: example.scores[0] - example.scores[1])
    assert second.translate(worst.text) == worst.answers[1]
    assert json.loads(json.dumps(result.to_json()))["overall"]["difference"]["high"] < 0
    assert any(line.split()[:2] == ["all", "60"] for line in file_comparison_lines(result))


def test_classifiers_are_compared_by_accuracy(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = (build(tokenizer, "classify", side) for side in (0, 1))
    texts = [" ".join(TEXTS[index % 3].split()[: 2 + index % 4]) for index in range(30)]
    labels = [first.classify(text).labels[0].name for text in texts]
    rows = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    write_lines(tmp_path / "test.tsv", ["text\tlabel", *rows])
    result = heedful.compare_files(first, second, tmp_path / "test.tsv")
    agree = [second.classify(text).labels[0].name == label for text, label in zip(texts, labels, strict=True)]
    assert result.overall.scores == (100.0, pytest.approx(100 * np.mean(agree)))
    assert result.same_answers == pytest.approx(np.mean(agree))
    assert result.overall.bleu is None


def test_texts_of_one_length_stay_together() -> None:
    buckets = length_buckets(np.array([3] * 40 + [9] * 10))
    assert [len(bucket) for bucket in buckets] == [40, 10]
    assert [len(bucket) for bucket in length_buckets(np.arange(50))] == [11, 10, 10, 10, 9]
    assert len(length_buckets(np.array([1, 2, 3]))) == 1
