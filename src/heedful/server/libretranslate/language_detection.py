"""LanguageDetector: which of some languages a text is in, by scripts and character trigrams.

The trigrams are those of each language's frequent short words and of its names in CLDR (months, countries, languages),
which come with the package `babel`: no text is downloaded or kept.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from heedful.data.unicode_scripts import RANGES
from heedful.server.libretranslate.function_words import FUNCTION_WORDS

FUNCTION_WORD_WEIGHT = 40
"""Occurrences that one frequent word counts for, beside CLDR's names."""
OVERLAP = 3.0
"""Trigrams overlap: the evidence is divided by this. On Multi30k's validation text confidences are then as often right
as they say (en, de, fr: 99.0% for 99.0%; two words, 88% for 86%; one word, 70% for 70%)."""
UNSEEN = 0.02
"""Probability left to trigrams that a language's words do not have."""
UNSEEN_LETTER = 0.02
"""Probability of a letter of the right script that a language's words do not have."""
OTHER_TRIGRAM = 1.0e-5
"""Probability of a trigram in none of the languages, …"""
OTHER_SYMBOL = 1.0e-12
"""… and where letters are syllables or words, of which there are thousands."""
MAX_CHARACTERS = 2_000
WORD = re.compile(r"[^\W\d_]+")
KNOWN_LANGUAGES = (*FUNCTION_WORDS, "ar", "fa", "he", "hi", "ja", "ko", "th", "zh")
"""Languages that are told apart if the served translators state none."""


class DetectedLanguage(NamedTuple):
    """A language and the probability, in percent, that a text is in it rather than in another one."""

    language: str
    confidence: float


class LanguageDetector:
    """Chooses among languages given by their codes."""

    def __init__(self, codes: Iterable[str]) -> None:
        self.codes = tuple(dict.fromkeys(codes))

    def detect(self, text: str) -> list[DetectedLanguage]:
        """The languages, most probable first; for a text without letters with a confidence of 0, in their order."""
        text = text[:MAX_CHARACTERS].lower()
        words = WORD.findall(text)
        if not words:
            return [DetectedLanguage(code, 0.0) for code in self.codes]
        scores = {code: self._log_likelihood(code, words) / OVERLAP for code in self.codes}
        symbols = sum(script_of(letter) in ("kana", "Hangul", "Han or kana") for word in words for letter in word)
        letters = sum(map(len, words)) - symbols
        other = (math.log(OTHER_TRIGRAM) * letters + math.log(OTHER_SYMBOL) * symbols) / OVERLAP
        best = max(other, *scores.values())
        total = sum(math.exp(score - best) for score in (other, *scores.values()))
        results = [DetectedLanguage(code, 100 * math.exp(score - best) / total) for code, score in scores.items()]
        return sorted(results, key=lambda result: -result.confidence)

    def _log_likelihood(self, code: str, words: Sequence[str]) -> float:
        profile = language_profile(code.partition("-")[0].partition("_")[0])
        total = 0.0
        for word in words:
            for trigram in trigrams(word):
                total += math.log(profile.get(trigram) or _unseen(trigram, profile))
        return total


def trigrams(word: str) -> list[str]:
    """The character trigrams of a word with a space on each side: as many as it has characters."""
    padded = f" {word} "
    return [padded[index : index + 3] for index in range(len(word))]


@cache
def language_profile(code: str) -> dict[str, float]:
    """Probabilities of a language's trigrams and, for others, of its letters ("letter x") and scripts."""
    counts: Counter[str] = Counter()
    for word in FUNCTION_WORDS.get(code, "").split():
        counts.update(dict.fromkeys(trigrams(word), FUNCTION_WORD_WEIGHT))
    for word in cldr_words(code):
        counts.update(trigrams(word))
    total = sum(counts.values()) or 1
    letters: Counter[str] = Counter()
    for trigram, count in counts.items():
        for letter in trigram.strip():
            letters[letter] += count
    all_letters = sum(letters.values()) or 1
    profile = {trigram: (1 - UNSEEN) * count / total for trigram, count in counts.items()}
    scripts = Counter(map(script_of, letters))
    known = sum(scripts.values()) or 1
    profile |= {f"script {script}": UNSEEN_LETTER * count / known for script, count in scripts.items()}
    return profile | {f"letter {letter}": count / all_letters for letter, count in letters.items()}


def _unseen(trigram: str, profile: dict[str, float]) -> float:
    """The probability of a trigram that a language's words do not have: by its letters, or else by its script."""
    probability = UNSEEN
    for letter in trigram.strip():
        probability *= profile.get(f"letter {letter}") or profile.get(f"script {script_of(letter)}", 0.0) or 1e-6
    return max(probability, 1e-15)


def script_of(letter: str) -> str:
    """The script of a letter, with kana apart from Han: a Chinese text has none."""
    code = ord(letter)
    if 0x3041 <= code <= 0x30FF:
        return "kana"
    return next((name for name, ranges in RANGES.items() if any(a <= code <= b for a, b in ranges)), "other")


def cldr_words(code: str) -> list[str]:
    """Words of a language: its names of months, days, languages and countries."""
    from babel import Locale, UnknownLocaleError

    try:
        locale = Locale.parse(code)
    except (UnknownLocaleError, ValueError):
        return []
    names = [str(name) for table in (locale.languages, locale.territories) for name in table.values()]
    for table in (locale.months, locale.days):
        names += [str(name) for name in table["format"]["wide"].values()] * 4
    return [word for name in names for word in WORD.findall(name.lower()) if _is_of_script(word, code)]


@cache
def _latin_languages() -> frozenset[str]:
    return frozenset(code for code, words in FUNCTION_WORDS.items() if ord(max(words)) < RANGES["Greek"][0][0])


def _is_of_script(word: str, code: str) -> bool:
    """Leave out Latin names that CLDR keeps in languages of other scripts."""
    return not word.isascii() or code in _latin_languages() or code not in FUNCTION_WORDS
