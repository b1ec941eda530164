"""Types of the decoding keyword arguments of `generate` and `translate`; `DecodingConfig` documents and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from heedful.errors import UsageError
from heedful.generation.search.settings import Engine
from heedful.interventions.kinds import Intervention


class DecodingOptions(TypedDict, total=False):
    """Keyword arguments of every method that generates text."""

    beam: int | None
    length_penalty: float
    n_best: int
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    min_length: int
    max_length: int | None
    stop: Sequence[str]
    forbidden: Sequence[str]
    exact: bool
    interventions: Sequence[Intervention] | None
    engine: Engine
    int8: bool


class GenerateOptions(DecodingOptions, total=False):
    """Keyword arguments of `Generator.generate`, `iter_generate` and `stream`."""

    temperature: float | None


class TranslateOptions(DecodingOptions, total=False):
    """Keyword arguments of `Translator.translate`."""

    temperature: float
    prefix: str
    glossary: str | dict[str, str] | None
    keep: bool


class IterTranslateOptions(TranslateOptions, total=False):
    """Keyword arguments of `Translator.iter_translate`."""

    alignments: bool
    word_probabilities: bool


def require_one_result(n_best: int, method: str) -> None:
    """Raise UsageError if more results are requested than a method that returns one text for each can give."""
    if isinstance(n_best, int) and n_best > 1:
        raise UsageError(f"{method} returns one text for each; iter_{method} gives the others of n_best {n_best}")
