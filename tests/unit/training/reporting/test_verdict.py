"""The verdict reports a useless model, the reason, and the next command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful.data.dataset import PreparedData, Split
from heedful.data.text_size import TextSize
from heedful.training.recipe import Recipe, make_recipe
from heedful.training.reporting.verdict import TrainingCourse, Verdict, judge_run
from heedful.training.run_catalog import RunSummary

GOOD: dict[str, Any] = {
    "bleu": 31.2, "chrf": 55.0, "exact_match": 0.1, "source_bleu": 2.0, "source_chrf": 15.0, "copied_sources": 0.0,
    "distinct_outputs": 98, "distinct_references": 100, "loss": 1.5, "unigram_loss": 6.0,
}  # fmt: skip
BAD = {"bleu": 0.1, "chrf": 9.0, "exact_match": 0.0}
CONVERGED = TrainingCourse(steps=1000, epochs=20.0, losses=(4.0, 2.0, 1.51, 1.5, 1.5), seconds_per_step=0.5)
SHORT = TrainingCourse(steps=50, epochs=0.2, losses=(8.0, 7.0, 6.0), seconds_per_step=2.0)
OVERFIT = replace(CONVERGED, losses=(4.0, 3.0, 4.0, 5.0))
MANY = 100_000


def recipe(task: str = "translate", dropout: float = 0.1) -> Recipe:
    family = {"translate": "encoder_decoder", "classify": "encoder", "generate": "decoder"}[task]
    model = {"family": family, "width": 16, "heads": 2, "layers": 1, "dropout": dropout}
    tokenizer, data = {"kind": "characters", "vocabulary": 60}, {"train": ["a.en", "a.de"]}
    return make_recipe({"task": task, "data": data, "tokenizer": tokenizer, "model": model, "training": {"steps": 9}})


def verdict(
    course: TrainingCourse = CONVERGED, examples: int = MANY, previous: RunSummary | None = None, **scores: Any
) -> Verdict:
    split = Split((), examples, TextSize(9, 9, 9))
    data = PreparedData((), split, split, {}, {}, metadata={"names": ["a", "b"]})
    return judge_run(recipe(), data, course, {**GOOD, **scores}, Path("my run"), previous)


@pytest.mark.parametrize(
    ("scores", "sign"),
    [
        (BAD, "BLEU 0.1 and chrF 9.0"),
        ({"bleu": 1.3, "chrf": 12.3, "exact_match": 0.02, "source_bleu": 0.0}, "BLEU 1.3 and chrF 12.3"),
        ({"distinct_outputs": 3}, "3 different translations for 100 references"),
        ({"distinct_outputs": 1, "distinct_references": 25}, "1 different translation for 25 references"),
        ({"copied_sources": 0.7}, "70% of the translations copy their source"),
        (
            {"source_bleu": 40.0, "source_chrf": 60.0},
            "copying the source scores more: BLEU 40.0 against 31.2, chrF 60.0 against 55.0",
        ),
        (
            {"bleu": 0.0, "chrf": 2.9, "source_bleu": 0.0, "source_chrf": 13.9},
            "copying the source scores more: chrF 13.9 against 2.9",
        ),
        ({"loss": 6.1}, "loss of 6.10 is no better than 6.00, by token frequencies"),
    ],
)
def test_a_useless_translator_is_reported_with_the_reason(scores: dict[str, Any], sign: str) -> None:
    judged = verdict(**scores)
    assert not judged.is_useful
    assert judged.finding.startswith("not usable: ")
    assert sign in judged.finding


def test_the_reason_leads_to_the_next_command() -> None:
    short = verdict(SHORT, **BAD)
    assert short.reasons == ("0.2 epochs of training", "the loss was still falling")
    assert shlex.split(short.next_command) == ["heedful", "train", "--recipe", "my run/recipe.toml", "--steps", "750"]
    assert short.next_seconds == 1500
    assert verdict(replace(SHORT, other_seconds=60.0), **BAD).next_seconds == 1560, "the phases around training count"
    assert "(about 25m00s)" in short.lines()[-1]
    overfit = verdict(OVERFIT, 600, **BAD)
    assert "memorizes" in overfit.reasons[0]
    assert overfit.reasons[1] == "only 600 pairs: a translator needs tens of thousands"
    assert overfit.next_command.endswith("--set model.dropout=0.3")
    assert verdict(replace(SHORT, epochs=0.001), **BAD).reasons[0] == "less than a tenth of an epoch of training"
    slow = verdict(replace(CONVERGED, epochs=1.5), **BAD)
    assert (slow.reasons, slow.next_command.split()[-2:]) == (("1.5 epochs of training",), ["--steps", "5000"])
    unexplained = verdict(CONVERGED, **BAD)
    assert "misaligned" in unexplained.reasons[0]
    assert unexplained.next_command == "heedful doctor a.en a.de --as pairs"


def test_a_loss_that_flattens_with_the_learning_rate_was_still_falling() -> None:
    cosine = replace(CONVERGED, losses=(5.70, 5.39, 5.20, 5.09, 5.07))
    assert verdict(cosine, **BAD).reasons == ("the loss was still falling",)


def test_a_useful_model_is_compared_with_copying_and_with_the_previous_run() -> None:
    assert verdict().lines() == ["verdict    BLEU 31.2; copying the source: BLEU 2.0, chrF 15.0"]
    before = RunSummary("runs/one", "translate", "finished", "2026-01-01", (), 1, 1, 1, "", scores={"bleu": 28.3})
    assert verdict(previous=before).finding.endswith("better than one on the same data: BLEU 28.3")
    assert "worse than one" in verdict(previous=before, bleu=20.0).finding
    improving = verdict(replace(CONVERGED, losses=(3.0, 2.0, 1.5)))
    assert improving.is_useful
    assert improving.next_command.endswith("--steps 5000")


def test_a_classifier_that_always_answers_the_same_is_useless() -> None:
    split = Split((), 50, TextSize(9, 9, 9))
    data = PreparedData((), split, split, {}, {}, metadata={"names": ["a", "b"]})
    scores = {
        "accuracy": 0.6, "macro_f1": 0.375, "majority_accuracy": 0.6, "majority_macro_f1": 0.375,
        "accuracy_low": 0.31, "accuracy_high": 0.83,
        "confusion": {"names": ["a", "b"], "counts": [[6, 0], [4, 0]]},
    }  # fmt: skip
    judged = judge_run(recipe("classify"), data, CONVERGED, scores, Path("run"))
    assert judged.finding == (
        "not usable: every text gets the same class; "
        "accuracy 60.0% is no better than always the most frequent class: 60.0%"
    )
    assert judged.reasons == ("only 50 texts for 2 classes: a hundred or more of each are needed",)


def classifier_verdict(accuracy: float, majority: float, macro_f1: float, low: float, high: float) -> Verdict:
    split = Split((), MANY, TextSize(9, 9, 9))
    data = PreparedData((), split, split, {}, {}, metadata={"names": ["a", "b"]})
    scores = {
        "accuracy": accuracy, "majority_accuracy": majority, "accuracy_low": low, "accuracy_high": high,
        "macro_f1": macro_f1, "majority_macro_f1": 0.001,
    }  # fmt: skip
    return judge_run(recipe("classify"), data, CONVERGED, scores, Path("run"))


def test_a_little_macro_f1_does_not_make_up_for_accuracy() -> None:
    judged = classifier_verdict(accuracy=0.016, majority=0.032, macro_f1=0.004, low=0.009, high=0.026)
    assert judged.finding == ("not usable: accuracy 1.6% is no better than always the most frequent class: 3.2%")
    assert not judged.is_useful
    assert classifier_verdict(accuracy=0.93, majority=0.95, macro_f1=0.8, low=0.91, high=0.94).is_useful


def test_guessing_is_not_finding_rare_classes() -> None:
    """Its macro F1 is 1 / classes, above that of one class for all: 0.33 of two equal ones."""
    split = Split((), MANY, TextSize(9, 9, 9))
    data = PreparedData((), split, split, {}, {}, metadata={"names": ["a", "b"]})
    scores = {
        "accuracy": 0.49, "majority_accuracy": 0.5, "accuracy_low": 0.43, "accuracy_high": 0.55,
        "macro_f1": 0.48, "majority_macro_f1": 0.33, "confusion": {"names": ["a", "b"], "counts": [[24, 26], [25, 25]]},
    }  # fmt: skip
    assert not judge_run(recipe("classify"), data, CONVERGED, scores, Path("run")).is_useful
    assert judge_run(recipe("classify"), data, CONVERGED, {**scores, "macro_f1": 0.61}, Path("run")).is_useful


def test_a_difference_inside_the_confidence_interval_is_reported() -> None:
    judged = classifier_verdict(accuracy=0.55, majority=0.52, macro_f1=0.5, low=0.48, high=0.62)
    assert judged.finding == (
        "accuracy 55.0%; always the most frequent class: 52.0% "
        "(the difference is inside the 95% interval, 48.0% to 62.0%)"
    )
    clear = classifier_verdict(accuracy=0.85, majority=0.52, macro_f1=0.5, low=0.8, high=0.89)
    assert clear.finding == "accuracy 85.0%; always the most frequent class: 52.0%"


def test_a_language_model_is_compared_with_token_frequencies() -> None:
    split = Split((), 1, TextSize(9, 9, MANY * 10))
    data = PreparedData((), split, split, {}, {})
    scores = {"loss": 3.0, "unigram_loss": 6.0, "bits_per_byte": 2.0}
    useful = judge_run(recipe("generate"), data, CONVERGED, scores, Path("run"))
    assert useful.finding == "bits per byte 2.000; by token frequencies: 4.000"
    assert not judge_run(recipe("generate"), data, CONVERGED, {**scores, "loss": 6.0}, Path("run")).is_useful
