"""Every span of a passage with its score, and the best of them (T5).

    ŝ(i, j) = s_i + e_j − (s_START + e_START)        i ≤ j < i + longest answer        Devlin 2019, 4.3

The score of a span is how far it beats START, which says "not here": its log-odds against no answer. Each window of a
long passage was taught to say "not here" where it does not hold the answer, so scores of different windows compare:
were windows independent, the answer would be span a with odds exp(ŝ(a)) against there being none. (The paper compares
scores of windows as they are.) A span that two windows hold has the better of its two scores.
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
    """passage[start:end], and how sure the model is of it."""

    text: str
    start: int
    end: int
    score: float
    """Log-odds against no answer."""
    probability: float
    """Among all spans; and no answer, where that is possible."""

    def to_json(self) -> dict[str, Any]:
        sure = {"score": round(self.score, 4), "probability": round(self.probability, 4)}
        return {"answer": self.text, "start": self.start, "end": self.end, **sure}


class SpanTable:
    """The best score of every span of a passage, by its first token and its length."""

    def __init__(self, passage: Passage, longest: int) -> None:
        self.passage = passage
        self.scores = np.full((len(passage), min(longest, len(passage))), -np.inf)
        self.covers = np.array([passage.has_text(token) for token in range(len(passage))])

    def add(self, window: PassageWindow, starts: Scores, ends: Scores, nothing: float) -> None:
        """What one window says of the spans in it."""
        size = window.end - window.start
        for more in range(min(self.scores.shape[1], size)):
            rows = slice(window.start, window.end - more)
            score = starts[: size - more] + ends[more:] - nothing
            self.scores[rows, more] = np.maximum(self.scores[rows, more], score)

    def best(self, top: int, *, may_fail: bool) -> tuple[tuple[Span, ...], float]:
        """The best spans, and the probability that there is none, which is 0 unless it `may_fail` to be there.

        Neither end of an answer is a blank.
        """
        first, more = np.indices(self.scores.shape)
        last = np.minimum(first + more, len(self.passage) - 1)
        scores = np.where(self.covers[first] & self.covers[last], self.scores, -np.inf).ravel()
        known = np.append(scores, 0.0) if may_fail else scores  # no answer is as good as itself
        total = known.max() + math.log(np.exp(known - known.max()).sum())

        def span(place: int) -> Span:
            start, end = self.passage.character_span(int(first.flat[place]), int(last.flat[place]))
            score = float(scores[place])
            return Span(self.passage.text[start:end], start, end, score, math.exp(score - total))

        order = np.argsort(-scores, kind="stable")[:top]
        spans = tuple(span(place) for place in order[np.isfinite(scores[order])].tolist())
        return spans, math.exp(-total) if may_fail else 0.0
