"""Results of translation and generation: texts with scores, word probabilities, alternatives and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from heedful.generation.search.hypotheses import Hypothesis
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import Unit, word_probabilities, words_from_tokens


@dataclass(frozen=True)
class ScoredWord:
    """A word and its probability, given all words before it."""

    text: str
    probability: float


@dataclass(frozen=True)
class Translation:
    """A source text and its translation."""

    source: str
    text: str
    log_probability: float
    """The model's, summed over all tokens."""
    score: float
    """What alternatives are ranked by; higher is better."""
    words: tuple[ScoredWord, ...] = ()
    alignment: tuple[tuple[int, int], ...] | None = None
    """Pairs of source word and target word, counted from 0; None = not requested."""
    alternatives: tuple[Translation, ...] = ()
    """The next best translations."""
    warnings: tuple[str, ...] = ()
    """Text cut off, unknown tokens."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values; absent parts are left out."""
        values = {"source": self.source, **_scores(self)}
        if self.alignment is not None:
            values["alignment"] = [list(pair) for pair in self.alignment]
        return {**values, **_extras(self.alternatives, self.warnings)}


@dataclass(frozen=True)
class Continuation:
    """A prompt and its continuation."""

    prompt: str
    text: str
    """What follows the prompt, without it."""
    log_probability: float
    score: float
    words: tuple[ScoredWord, ...] = ()
    alternatives: tuple[Continuation, ...] = ()
    """Other samples, or the next best continuations."""
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values; absent parts are left out."""
        return {"prompt": self.prompt, **_scores(self), **_extras(self.alternatives, self.warnings)}


def hypothesis_words(hypothesis: Hypothesis, tokenizer: Tokenizer, unit: Unit = "words") -> tuple[ScoredWord, ...]:
    """The words of a hypothesis with their probabilities; none if the backend did not score tokens."""
    if any(map(isnan, hypothesis.token_log_probabilities)):
        return ()
    words = words_from_tokens(hypothesis.tokens, tokenizer, unit)
    return tuple(ScoredWord(*word) for word in word_probabilities(words, hypothesis.token_log_probabilities))


def _scores(result: Translation | Continuation) -> dict[str, Any]:
    return {
        "text": result.text,
        "log_probability": round(result.log_probability, 4),
        "score": round(result.score, 4),
        "words": [{"text": word.text, "probability": round(word.probability, 4)} for word in result.words],
    }


def _extras(alternatives: Sequence[Translation | Continuation], warnings: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if alternatives:
        values["alternatives"] = [
            {key: value for key, value in each.to_json().items() if key not in ("source", "prompt")}
            for each in alternatives
        ]
    if warnings:
        values["warnings"] = list(warnings)
    return values
