"""Score every span of a passage and select the best (T5).

    ŝ(i, j) = s_i + e_j − (s_START + e_START)        i ≤ j < i + longest answer        Devlin 2019, 4.3

A span's score is its margin over START, which stands for "no answer here": the log-odds against no answer. Each window
of a long passage was trained to choose START where it does not contain the answer, so scores of different windows are
comparable: were windows independent, the answer would be span a with odds exp(ŝ(a)) against there being none. (The
paper compares raw scores of windows.) A span in two windows has the better of its two scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.passage_windows import Passage, PassageWindow

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """passage[start:end] as a candidate answer."""

    text: str
    start: int
    end: int
    score: float
    """Log-odds against no answer."""
    probability: float
    """Among all spans and, where that is possible, no answer."""

    def to_json(self) -> dict[str, Any]:
        position = {"answer": self.text, "start": self.start, "end": self.end}
        return position | {"score": round(self.score, 4), "probability": round(self.probability, 4)}


class SpanTable:
    """The best score of every span of a passage, by its first token and its length."""

    def __init__(self, passage: Passage, max_answer_tokens: int) -> None:
        self.passage = passage
        self.scores = np.full((len(passage), min(max_answer_tokens, len(passage))), -np.inf)
        self.has_text = np.array([passage.has_text(token) for token in range(len(passage))])

    def add(self, window: PassageWindow, starts: Scores, ends: Scores, no_answer: float) -> None:
        """Add the scores of one window's spans."""
        size = window.end - window.start
        for extra in range(min(self.scores.shape[1], size)):
            rows = slice(window.start, window.end - extra)
            score = starts[: size - extra] + ends[extra:] - no_answer
            self.scores[rows, extra] = np.maximum(self.scores[rows, extra], score)

    def best(self, top: int, *, may_be_unanswerable: bool) -> tuple[tuple[Span, ...], float]:
        """The best spans, and the probability of no answer (0 unless `may_be_unanswerable`).

        A span neither starts nor ends with a token of whitespace.
        """
        first, extra = np.indices(self.scores.shape)
        last = np.minimum(first + extra, len(self.passage) - 1)
        scores = np.where(self.has_text[first] & self.has_text[last], self.scores, -np.inf).ravel()
        outcomes = np.append(scores, 0.0) if may_be_unanswerable else scores  # the log-odds of no answer are 0
        total = outcomes.max() + math.log(np.exp(outcomes - outcomes.max()).sum())

        def span(index: int) -> Span:
            start, end = self.passage.character_span(int(first.flat[index]), int(last.flat[index]))
            score = float(scores[index])
            return Span(self.passage.text[start:end], start, end, score, math.exp(score - total))

        order = np.argsort(-scores, kind="stable")[:top]
        spans = tuple(span(index) for index in order[np.isfinite(scores[order])].tolist())
        return spans, math.exp(-total) if may_be_unanswerable else 0.0
