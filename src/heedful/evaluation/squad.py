"""SQuAD exact match and F1, as the published scripts compute them (Rajpurkar 2016; 2018 with unanswerable questions).

    normalization  lower case; no ASCII punctuation; no a, an, the; single spaces
    exact match    the normalized texts are equal
    F1             of the two bags of words: 2 · precision · recall / (precision + recall)

The best of several references counts. Hand-written because no dependency has both versions of the metric.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heedful.inspection.census.paired_bootstrap import bootstrap_interval

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class SquadScore(NamedTuple):
    """Exact match and F1 of one answer."""

    exact: float
    f1: float


def normalize_answer(answer: str) -> str:
    """Normalize an answer. Punctuation is removed before articles: "the-end" is one word, and stays."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def score_answer(answer: str, references: Sequence[str], *, squad2: bool = False) -> SquadScore:
    """Score one answer against its references.

    The two versions differ where a normalized text is empty. In SQuAD 1.1 F1 needs words in common; in 2.0 empty
    references are dropped, and an empty answer scores only against no reference.
    """
    if squad2:
        references = [text for text in references if normalize_answer(text)] or [""]
    predicted, normalized = normalize_answer(answer), [normalize_answer(text) for text in references]
    exact = max(float(predicted == reference) for reference in normalized)
    return SquadScore(exact, max(_f1(predicted.split(), reference.split(), squad2) for reference in normalized))


def _f1(predicted: list[str], reference: list[str], squad2: bool) -> float:
    if squad2 and not (predicted and reference):
        return float(predicted == reference)
    common = (Counter(predicted) & Counter(reference)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(reference)
    return 2 * precision * recall / (precision + recall)


class AnswerPrediction(NamedTuple):
    """The best span of a passage, its score margin over "no answer", and the references."""

    text: str
    score: float
    references: tuple[str, ...]
    """Empty: the question is unanswerable."""


def answer_scores(predictions: Sequence[AnswerPrediction], threshold: float | None = None) -> dict[str, Any]:
    """Score predictions from 0 to 1; a score below the threshold means "no answer" (None: always answer).

    The rules of SQuAD 2.0 apply if any question is unanswerable, else those of 1.1. Questions with and without an
    answer are then scored apart, too, and so is the best threshold for these questions.
    """
    unanswerable = sum(not prediction.references for prediction in predictions)
    squad2 = unanswerable > 0
    per_question = np.array([_score_prediction(prediction, threshold, squad2) for prediction in predictions])
    exact, f1 = per_question.mean(0).tolist()
    low, high = bootstrap_interval(per_question[:, 1])
    scores = {"exact_match": exact, "f1": f1, "f1_low": low, "f1_high": high}
    scores |= {"questions": len(predictions), "unanswerable": unanswerable}
    if squad2:
        answerable = np.array([bool(prediction.references) for prediction in predictions])
        if answerable.any():
            means = per_question[answerable].mean(0).tolist()
            scores |= dict(zip(("exact_match_answerable", "f1_answerable"), means, strict=True))
        scores["correct_unanswerable"] = float(per_question[~answerable, 0].mean())
        scores["best_exact_match"], _ = best_threshold(predictions, "exact")
        scores["best_f1"], scores["best_threshold"] = best_threshold(predictions, "f1")
    return scores if threshold is None else {**scores, "threshold": threshold}


def _score_prediction(prediction: AnswerPrediction, threshold: float | None, squad2: bool) -> SquadScore:
    if threshold is None or prediction.score >= threshold:
        return score_answer(prediction.text, prediction.references, squad2=squad2)
    correct = float(not prediction.references)  # as published: even where the normalized references are empty
    return SquadScore(correct, correct)


def best_threshold(predictions: Sequence[AnswerPrediction], metric: str = "f1") -> tuple[float, float]:
    """Return the highest mean score that any threshold gives on these questions, and that threshold.

    Answers are added from the highest score to the lowest: each gains its score, or loses 1 if unanswerable.
    """
    raw = np.array([getattr(score_answer(p.text, p.references, squad2=True), metric) for p in predictions])
    answerable = np.array([bool(prediction.references) for prediction in predictions])
    score = np.array([prediction.score for prediction in predictions])
    order = np.argsort(-score, kind="stable")
    gain = np.where(answerable, raw, np.where([bool(prediction.text) for prediction in predictions], -1.0, 0.0))[order]
    totals = np.concatenate([[0.0], np.cumsum(gain)]) + (~answerable).sum()
    ends = np.append(score[order][1:] != score[order][:-1], True)  # equal scores are on one side of any threshold
    totals[1:][~ends] = -np.inf
    best = int(totals.argmax())
    above = score[order[best - 1]] if best else score.max() + 1.0
    below = score[order[best]] if best < len(order) else score.min() - 1.0
    return float(totals[best] / len(predictions)), float((above + below) / 2 if best else above)
