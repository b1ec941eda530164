"""Exact match and F1; the expected numbers are those of SQuAD's published scripts."""

from __future__ import annotations

import pytest

from heedful.evaluation.squad import AnswerPrediction, answer_scores, best_threshold, normalize_answer, score_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Denver Broncos!", "denver broncos"),
        ("a cat and an owl", "cat and owl"),
        ("theatre, banana", "theatre banana"),
        ("the-end", "theend"),
        ("U.S.A.", "usa"),
        ("A. A. Milne", "milne"),
        ("…", "…"),  # only ASCII punctuation is removed
        ("“quoted”", "“quoted”"),
        ("ÉCOLE", "école"),
        ("The", ""),
        ("?!", ""),
        ("", ""),
        ("\u00a0two\u2003words\n", "two words"),
        ("$1,000.50", "100050"),
    ],
)
def test_normalization_removes_case_punctuation_articles_and_whitespace(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("answer", "references", "first", "second"),
    [
        ("Denver Broncos", ["The Denver Broncos"], (1, 1), (1, 1)),
        ("Broncos", ["Denver Broncos", "Carolina"], (0, 2 / 3), (0, 2 / 3)),
        ("Broncos", ["Carolina", "Broncos."], (1, 1), (1, 1)),
        ("to be or not to be", ["to be"], (0, 0.5), (0, 0.5)),
        ("the", ["a"], (1, 0), (1, 1)),  # both normalize to nothing: the versions differ
        ("", ["the"], (1, 0), (1, 1)),
        ("", ["Denver"], (0, 0), (0, 0)),
        ("Denver", ["?", "Denver"], (1, 1), (1, 1)),
        ("", ["?", "Denver"], (1, 0), (0, 0)),  # SQuAD 2.0 drops the reference "?"
        ("naïve Café", ["Naïve café"], (1, 1), (1, 1)),
        ("a b b", ["b b b c"], (0, 2 * 1.0 * 0.5 / 1.5), (0, 2 * 1.0 * 0.5 / 1.5)),
    ],
)
def test_scores_equal_the_published_scripts(
    answer: str, references: list[str], first: tuple[float, float], second: tuple[float, float]
) -> None:
    assert score_answer(answer, references) == pytest.approx(first)
    assert score_answer(answer, references, squad2=True) == pytest.approx(second)


def test_unanswerable_question_is_correct_only_without_an_answer() -> None:
    assert score_answer("", [], squad2=True) == (1, 1)
    assert score_answer("Denver", [], squad2=True) == (0, 0)


PREDICTIONS = [
    AnswerPrediction("Denver", 5.0, ("Denver",)),
    AnswerPrediction("a red car", 3.0, ("red",)),
    AnswerPrediction("nowhere", 2.0, ()),
    AnswerPrediction("Carolina", 1.0, ("Carolina Panthers", "Panthers")),
    AnswerPrediction("someone", -1.0, ()),
    AnswerPrediction("never", -2.0, ("always",)),
]


def test_unanswerable_questions_use_the_squad_2_rules() -> None:
    scores = answer_scores(PREDICTIONS, threshold=0.5)
    assert scores["exact_match"] == pytest.approx(2 / 6)
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 0 + 2 / 3 + 1 + 0) / 6)
    assert (scores["questions"], scores["unanswerable"]) == (6, 2)
    assert scores["exact_match_answerable"] == pytest.approx(1 / 4)
    assert scores["f1_answerable"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 4)
    assert scores["correct_unanswerable"] == pytest.approx(1 / 2)
    assert scores["best_exact_match"] == pytest.approx(3 / 6), "the first answer and both unanswerable questions"
    assert scores["best_f1"] == pytest.approx((2 + 1 + 2 / 3) / 6)
    assert 2.0 < scores["best_threshold"] < 3.0
    assert scores["f1_low"] <= scores["f1"] <= scores["f1_high"]


def test_best_threshold_maximizes_f1() -> None:
    best, threshold = best_threshold(PREDICTIONS)
    candidates = {answer_scores(PREDICTIONS, threshold)["f1"] for threshold in (-9.0, -1.5, -0.5, 1.5, 2.5, 4.0, 9.0)}
    assert best == pytest.approx(max(candidates))
    assert answer_scores(PREDICTIONS, threshold)["f1"] == pytest.approx(best)


def test_best_threshold_treats_equal_scores_alike() -> None:
    alike = [AnswerPrediction("right", 1.0, ("right",)), AnswerPrediction("wrong", 1.0, ())]
    best, threshold = best_threshold(alike)
    assert best == pytest.approx(0.5)
    assert answer_scores(alike, threshold)["f1"] == pytest.approx(best)


def test_answerable_questions_use_the_squad_1_rules() -> None:
    scores = answer_scores([AnswerPrediction("the", -5.0, ("a",)), AnswerPrediction("red", -9.0, ("red car",))])
    assert scores["exact_match"] == pytest.approx(0.5)
    assert scores["f1"] == pytest.approx((0 + 2 / 3) / 2)
    assert "best_f1" not in scores
