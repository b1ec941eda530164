"""What comes back for a text: the answer, how sure the model was of it, and what it nearly said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScoredWord:
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
    words: tuple[ScoredWord, ...] = ()
    alignment: tuple[tuple[int, int], ...] | None = None
    """Pairs of a source word and a target word, counted from 0; None: nobody asked."""
    alternatives: tuple[Translation, ...] = ()
    """The next best translations."""
    warnings: tuple[str, ...] = ()
    """What the reader should know: text cut off, symbols not understood."""

    def to_json(self) -> dict[str, Any]:
        """As plain values, without what is not there."""
        found = {"source": self.source, **_common(self)}
        if self.alignment is not None:
            found["alignment"] = [list(pair) for pair in self.alignment]
        return {**found, **_around(self.alternatives, self.warnings)}


@dataclass(frozen=True)
class Continuation:
    """A prompt and how the model went on from it."""

    prompt: str
    text: str
    """What follows the prompt, without it."""
    log_probability: float
    score: float
    words: tuple[ScoredWord, ...] = ()
    alternatives: tuple[Continuation, ...] = ()
    """Other samples, or the next best."""
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain values, without what is not there."""
        return {"prompt": self.prompt, **_common(self), **_around(self.alternatives, self.warnings)}


def _common(answer: Translation | Continuation) -> dict[str, Any]:
    return {
        "text": answer.text,
        "log_probability": round(answer.log_probability, 4),
        "score": round(answer.score, 4),
        "words": [{"text": word.text, "probability": round(word.probability, 4)} for word in answer.words],
    }


def _around(rivals: Sequence[Translation | Continuation], warnings: Sequence[str]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if rivals:
        parts["alternatives"] = [
            {k: v for k, v in each.to_json().items() if k not in ("source", "prompt")} for each in rivals
        ]
    if warnings:
        parts["warnings"] = list(warnings)
    return parts
