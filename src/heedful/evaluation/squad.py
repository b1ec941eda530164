"""Answers against references, by the published rule: exact match and F1 (Rajpurkar 2016; 2018 for unanswerable ones).

    normal form   small letters; no ASCII punctuation; no a, an, the; single spaces between words
    exact match   the normal forms are equal
    F1            of the two bags of words: 2 · precision · recall / (precision + recall)

Of several references the best counts. A question without an answer has one reference, the empty text.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
SAMPLES = 1000


class SquadScore(NamedTuple):
    """Of one answer, or the mean of many."""

    exact: float
    f1: float


def normalize_answer(answer: str) -> str:
    """What is compared. Punctuation goes before articles do: "the-end" is one word, and stays."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def score_answer(answer: str, references: Sequence[str], *, squad2: bool = False) -> SquadScore:
    """One answer against its references.

    The two editions differ where nothing is left of a text but punctuation and articles. In the first, words in common
    must be there for any F1. In the second, such references do not count, and where one side is empty both must be.
    """
    if squad2:
        references = [text for text in references if normalize_answer(text)] or [""]
    ours = normalize_answer(answer)
    found = [
        (float(ours == theirs), _f1(ours.split(), theirs.split(), squad2))
        for theirs in map(normalize_answer, references)
    ]
    return SquadScore(max(exact for exact, _ in found), max(f1 for _, f1 in found))


def _f1(ours: list[str], theirs: list[str], squad2: bool) -> float:
    if squad2 and not (ours and theirs):
        return float(ours == theirs)
    same = (Counter(ours) & Counter(theirs)).total()
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


class AnswerPrediction(NamedTuple):
    """The best span of a passage, how much better it is than "no answer", and what would have been right."""

    text: str
    score: float
    references: tuple[str, ...]
    """None: the passage does not tell."""


@dataclass(frozen=True)
class AnswerScores:
    """Shares between 0 and 1, as the published scripts' are between 0 and 100."""

    exact_match: float
    f1: float
    f1_low: float
    """Ends of the 95% bootstrap interval over questions."""
    f1_high: float
    questions: int
    unanswerable: int
    exact_match_answerable: float | None = None
    f1_answerable: float | None = None
    correct_unanswerable: float | None = None
    """The share of unanswerable questions that were left without an answer."""
    best_exact_match: float | None = None
    """With the threshold that would have been best for these very questions."""
    best_f1: float | None = None
    best_threshold: float | None = None
    """The one for F1."""
    threshold: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def answer_scores(predictions: Sequence[AnswerPrediction], threshold: float | None = None) -> AnswerScores:
    """Every score of some answers. Below the threshold, "no answer" is given instead; None: never.

    With unanswerable questions among them the second edition's rule holds, otherwise the first's.
    """
    nothing = sum(not each.references for each in predictions)
    squad2 = nothing > 0
    found = np.array([_given(each, threshold, squad2) for each in predictions])
    exact, f1 = found.mean(0).tolist()
    low, high = _interval(found[:, 1])
    scores = AnswerScores(exact, f1, low, high, len(predictions), nothing, threshold=threshold)
    if not squad2:
        return scores
    told = np.array([bool(each.references) for each in predictions])
    parts: dict[str, float | None] = {"right_unanswerable": float(found[~told, 0].mean())}
    if told.any():
        parts |= dict(zip(("exact_match_answerable", "f1_answerable"), found[told].mean(0).tolist(), strict=True))
    parts["best_exact_match"], _ = best_threshold(predictions, "exact")
    parts["best_f1"], parts["best_threshold"] = best_threshold(predictions, "f1")
    return AnswerScores(**{**asdict(scores), **parts})


def _given(judged: AnswerPrediction, threshold: float | None, squad2: bool) -> SquadScore:
    if threshold is None or judged.score >= threshold:
        return score_answer(judged.text, judged.references, squad2=squad2)
    right = float(not judged.references)  # as published: even where nothing is left of the references
    return SquadScore(right, right)


def best_threshold(predictions: Sequence[AnswerPrediction], metric: str = "f1") -> tuple[float, float]:
    """The highest mean that any threshold gives on these questions, and that threshold: to be used on others.

    From the surest answer to the least: each one given gains what it is worth, or loses 1 where none was right.
    """
    raw = np.array([getattr(score_answer(each.text, each.references, squad2=True), metric) for each in predictions])
    told = np.array([bool(each.references) for each in predictions])
    score = np.array([each.score for each in predictions])
    order = np.argsort(-score, kind="stable")
    gain = np.where(told, raw, np.where([bool(each.text) for each in predictions], -1.0, 0.0))[order]
    totals = np.concatenate([[0.0], np.cumsum(gain)]) + (~told).sum()
    ends = np.append(score[order][1:] != score[order][:-1], True)  # equal scores are given together or not at all
    totals[1:][~ends] = -np.inf
    best = int(totals.argmax())
    above = score[order[best - 1]] if best else score.max() + 1.0
    below = score[order[best]] if best < len(order) else score.min() - 1.0
    return float(totals[best] / len(predictions)), float((above + below) / 2 if best else above)


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Bootstrap over questions, seeded: the same answers give the same ends."""
    draw = np.random.default_rng(0)
    means = [values[draw.integers(len(values), size=len(values))].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return low, high
