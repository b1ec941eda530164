"""Results of translation and generation: texts with scores, word probabilities, alternatives and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """The model's log-probability, summed over all tokens."""
    score: float
    """The ranking score of alternatives; higher is better."""
    words: tuple[ScoredWord, ...] = ()
    alignment: tuple[tuple[int, int], ...] | None = None
    """Pairs of source word and target word, counted from 0; None = not requested."""
    alternatives: tuple[Translation, ...] = ()
    """The next best translations."""
    warnings: tuple[str, ...] = ()
    """Warnings, such as truncated text or unknown tokens."""
    backend: str = ""
    """The backend that decoded it."""
    hypotheses: tuple[Hypothesis, ...] = field(default=(), repr=False, compare=False)
    """The tokens generated: one hypothesis for each part that was decoded apart."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values; absent parts are left out."""
        return {"source": self.source, **_output_to_json(self, self.alignment)}


@dataclass(frozen=True)
class Continuation:
    """A prompt and its continuation."""

    prompt: str
    text: str
    """The generated text, without the prompt."""
    log_probability: float
    score: float
    words: tuple[ScoredWord, ...] = ()
    alternatives: tuple[Continuation, ...] = ()
    """Other samples, or the next best continuations."""
    warnings: tuple[str, ...] = ()
    backend: str = ""
    """The backend that decoded it."""
    hypotheses: tuple[Hypothesis, ...] = field(default=(), repr=False, compare=False)
    """The tokens generated: one hypothesis for each part that was decoded apart."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values; absent parts are left out."""
        return {"prompt": self.prompt, **_output_to_json(self)}


def hypothesis_words(hypothesis: Hypothesis, tokenizer: Tokenizer, unit: Unit = "words") -> tuple[ScoredWord, ...]:
    """The words of a hypothesis with their probabilities; none if the backend did not score tokens."""
    if any(map(isnan, hypothesis.token_log_probabilities)):
        return ()
    words = words_from_tokens(hypothesis.tokens, tokenizer, unit)
    return tuple(ScoredWord(*word) for word in word_probabilities(words, hypothesis.token_log_probabilities))


def _output_to_json(
    result: Translation | Continuation, alignment: Sequence[tuple[int, int]] | None = None
) -> dict[str, Any]:
    """The model's result for an input, as JSON values."""
    values: dict[str, Any] = {
        "text": result.text,
        "log_probability": round(result.log_probability, 4),
        "score": round(result.score, 4),
        "words": [{"text": word.text, "probability": float(f"{word.probability:.4g}")} for word in result.words],
    }
    if alignment is not None:
        values["alignment"] = [list(pair) for pair in alignment]
    if result.alternatives:
        values["alternatives"] = [_output_to_json(alternative) for alternative in result.alternatives]
    if result.warnings:
        values["warnings"] = list(result.warnings)
    return values
