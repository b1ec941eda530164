"""What comes back for a text: the answer, how sure the model was of it, and what it nearly said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    """A word of an answer and its probability, given all before it."""

    text: str
    probability: float


@dataclass(frozen=True)
class Translation:
    """A text and what it was translated to."""

    source: str
    text: str
    log_probability: float
    """By the model alone, over all tokens."""
    score: float
    """Among its rivals; higher is better."""
    words: tuple[Word, ...] = ()
    alignment: tuple[tuple[int, int], ...] | None = None
    """Pairs of a source word and a target word, counted from 0; None: nobody asked."""
    rivals: tuple[Translation, ...] = ()
    """The next best translations."""
    warnings: tuple[str, ...] = ()
    """What the reader should know: text cut off, symbols not understood."""

    def to_json(self) -> dict[str, Any]:
        """As plain values, without what is not there."""
        found: dict[str, Any] = {
            "source": self.source,
            "text": self.text,
            "log_probability": round(self.log_probability, 4),
            "score": round(self.score, 4),
            "words": [{"text": word.text, "probability": round(word.probability, 4)} for word in self.words],
        }
        if self.alignment is not None:
            found["alignment"] = [list(pair) for pair in self.alignment]
        if self.rivals:
            rivals = [rival.to_json() for rival in self.rivals]
            found["rivals"] = [{key: value for key, value in rival.items() if key != "source"} for rival in rivals]
        if self.warnings:
            found["warnings"] = list(self.warnings)
        return found
