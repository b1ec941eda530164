"""Which of the served translators answers a pair of languages."""

from __future__ import annotations

from heedful.server.error_responses import RequestError
from heedful.server.language_pairs import LanguagePair
from heedful.server.libretranslate.language_detection import KNOWN_LANGUAGES, DetectedLanguage, LanguageDetector
from heedful.server.model_registry import ModelRegistry, RegisteredModel


def served_pairs(registry: ModelRegistry) -> list[LanguagePair]:
    """The pairs of languages of the served translators."""
    return [served.languages for served in served_translators(registry) if served.languages is not None]


def served_translators(registry: ModelRegistry) -> list[RegisteredModel]:
    """All served translators."""
    return [served for served in registry.served.values() if served.task == "translate"]


def choose_model(
    registry: ModelRegistry, source: str, target: str, text: str
) -> tuple[RegisteredModel | None, DetectedLanguage | None]:
    """The translator for a pair, and the source language if it was to be detected.

    A translator whose languages are unknown answers any pair. No translator: source and target are the same language.
    """
    detected = None
    if source == "auto":
        candidates = [pair.source for pair in served_pairs(registry) if same_language(pair.target, target)]
        detected = LanguageDetector([*candidates, target] if candidates else KNOWN_LANGUAGES).detect(text)[0]
        source = detected.language if candidates else "auto"
    if source == target:
        return None, detected
    for served in served_translators(registry):
        pair = served.languages
        if pair is not None and same_language(pair.source, source) and same_language(pair.target, target):
            return served, detected
    unstated = [served for served in served_translators(registry) if served.languages is None]
    if not unstated:
        pairs = ", ".join(sorted(map(str, served_pairs(registry)))) or "none"
        raise RequestError(400, f"this pair of languages is not served; served: {pairs}")
    return unstated[0], detected


def same_language(one: str, other: str) -> bool:
    """Whether two codes name a language, whatever their regions: pt and pt-BR."""
    first, second = (code.lower().replace("_", "-") for code in (one, other))
    if first == second:
        return True
    same_base = first.partition("-")[0] == second.partition("-")[0]
    return same_base and ("-" not in first or "-" not in second)
