"""The built-in corpus: dates as people write them in many languages, to be written as 2015-07-01.

Names and patterns come from the Unicode CLDR by way of Babel, so there is nothing to download; a few ways of
writing that CLDR does not list (ordinals, "den 1. Juli") are added by hand. Every date knows which of its
letters gave the year, the month and the day: a model's attention can be held against that.

Forms that could mean two days are left out: years of two digits, and numbers alone in an order that
differs between countries (1/7/2015). What is left has one reading each, over all days and languages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import cache
from os import PathLike
from pathlib import Path
from random import Random
from typing import NamedTuple

from babel import Locale
from babel.dates import tokenize_pattern

from heedful.errors import UsageError, nearest

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
HELD_OUT = 0.1
"""Share of the days kept for validation, and again for the test."""

LANGUAGES = {
    "en": ("en", "en_GB"),
    "de": ("de", "de_AT"),
    "fr": ("fr",),
    "es": ("es",),
    "it": ("it",),
    "pt": ("pt",),
    "nl": ("nl",),
    "sv": ("sv",),
    "pl": ("pl",),
    "tr": ("tr",),
    "ru": ("ru",),
    "el": ("el",),
    "ar": ("ar",),
    "hi": ("hi",),
    "ja": ("ja",),
    "zh": ("zh", "zh_Hant"),
    "ko": ("ko",),
}
"""The languages, and for each the places whose ways of writing are taken."""

SKELETONS = ("yMMMd", "yMMMEd", "yMMMMd", "yMMMMEd", "yMMMMEEEEd", "yMd")

EXTRA_PATTERNS = {
    "en": (
        "MMMM d°, y",
        "d° MMMM y",
        "'the' d° 'of' MMMM, y",
        "d° 'of' MMMM y",
        "EEEE 'the' d° 'of' MMMM y",
        "d-MMM-y",
    ),
    "de": ("EEEE, 'den' d. MMMM y", "'den' d. MMMM y"),
    "fr": ("d° MMMM y", "'le' d° MMMM y", "EEEE d° MMMM y"),
    "es": ("EEEE d 'de' MMMM 'de' y", "d MMMM y"),
    "it": ("d° MMMM y", "EEEE d° MMMM y"),
    "pt": ("d° 'de' MMMM 'de' y", "d MMMM y"),
    "nl": ("d MMMM y", "EEEE, d MMMM y"),
    "sv": ("'den' d MMMM y", "EEEE 'den' d MMMM y"),
    "pl": ("d MMMM y 'r'.", "EEEE, d MMMM y 'r'."),
    "tr": ("d MMMM y, EEEE",),
    "ru": ("d MMMM y 'года'", "EEEE, d MMMM y 'года'", "d MMMM y"),
    "el": ("EEEE, d MMMM y",),
    "ja": ("y年MM月dd日", "y年M月d日 (E)"),
    "zh": ("y年MM月dd日", "y年M月d日 EEEE"),
    "ko": ("y년 M월 d일 EEEE", "y년 MM월 dd일"),
}
"""Ways of writing that CLDR does not list. `d°` is the day as an ordinal."""

NATIVE_DIGITS = {"ar": "٠١٢٣٤٥٦٧٨٩", "hi": "०१२३४५६७८९"}
"""Digits of their own, used beside the others."""

SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200f": None, "\u200e": None})
Span = tuple[int, int]
PatternPart = tuple[str, bool, dict[int, str]]
"""What a piece of text is chosen by (year, month, day, weekday or nothing), whether it is linked, and the choices."""


class DateSpans(NamedTuple):
    """Where year, month and day stand: start and end, in characters."""

    year: Span
    month: Span
    day: Span


TARGET_SPANS = DateSpans(year=(0, 4), month=(5, 7), day=(8, 10))
"""Where they stand in every target."""


class DatePair(NamedTuple):
    """A date as written, in ISO 8601, and where in the first each part of the second comes from."""

    source: str
    target: str
    spans: DateSpans
    language: str


class Dates(NamedTuple):
    """The corpus. No day stands in two of its parts."""

    train: tuple[DatePair, ...]
    valid: tuple[DatePair, ...]
    test: tuple[DatePair, ...]


class DateStyle(NamedTuple):
    """One way of writing a date: the pieces of a CLDR pattern, and what is done to them."""

    language: str
    locale: str
    pattern: str
    lower: bool = False
    native_digits: bool = False

    def write(self, day: date) -> DatePair:
        """The day in this style."""
        return next(self.write_all([day]))

    def write_all(self, days: Iterable[date]) -> Iterator[DatePair]:
        """Each day in this style."""
        pieces = _pieces(self)
        for day in days:
            numbers = {"year": day.year, "month": day.month, "day": day.day, "weekday": day.weekday(), "": 0}
            source, spans = "", {}
            for part, is_linked, texts in pieces:
                text = texts[numbers[part]]
                if is_linked:  # a month "7월" is linked by its number alone
                    spans[part] = (len(source), len(source) + len(text.rstrip("월")))
                source += text
            yield DatePair(source, day.isoformat(), DateSpans(**spans), self.language)


def dates_corpus(
    seed: int = 0, *, train: int = 20_000, valid: int = 1_000, test: int = 1_000, languages: Sequence[str] = ()
) -> Dates:
    """So many different dates for each part, the same for the same seed. Languages: all, unless some are named."""
    days = [date.fromordinal(number) for number in range(FIRST.toordinal(), LAST.toordinal() + 1)]
    Random(f"{seed} days").shuffle(days)
    held_out = int(HELD_OUT * len(days))
    parts = {"test": days[:held_out], "valid": days[held_out : 2 * held_out], "train": days[2 * held_out :]}
    sizes = {"test": test, "valid": valid, "train": train}
    by_language = [styles(language) for language in languages or LANGUAGES]
    made = {name: _draw(Random(f"{seed} {name}"), parts[name], by_language, sizes[name], name) for name in parts}
    return Dates(**made)


def write_dates(
    folder: str | PathLike[str], seed: int = 0, *, train: int = 20_000, valid: int = 1_000, test: int = 1_000
) -> Path:
    """The corpus as line files: train.source, train.target and so on. What is there already must be the same."""
    path = Path(folder)
    parts = dates_corpus(seed, train=train, valid=valid, test=test)._asdict()
    files = {
        path / f"{name}.{side}": "".join(f"{getattr(pair, side)}\n" for pair in pairs).encode()
        for name, pairs in parts.items()
        for side in ("source", "target")
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        missing = {file: text for file, text in files.items() if not file.exists() or file.read_bytes() != text}
        for file in missing:
            if file.exists():
                raise UsageError(f"{file} holds something else: name another folder, nothing is overwritten")
        for file, text in missing.items():
            file.write_bytes(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path


@cache
def styles(language: str) -> tuple[DateStyle, ...]:
    """All ways of writing a date in a language that have one reading."""
    if language not in LANGUAGES:
        raise UsageError(f"no dates in '{language}'; {nearest(language, LANGUAGES)}")
    places = LANGUAGES[language]
    listed = [DateStyle(language, place, pattern) for place in places for pattern in _listed(place)]
    added = [DateStyle(language, places[0], pattern) for pattern in EXTRA_PATTERNS.get(language, ())]
    found = [style for style in dict.fromkeys([*listed, *added]) if _has_one_reading(style.pattern)]
    samples = [date(2015, month, 7 + month) for month in range(1, 13)]
    cased = [style for style in found if any((text := style.write(day).source) != text.lower() for day in samples)]
    own = [style._replace(native_digits=True) for style in found if language in NATIVE_DIGITS]
    lower = [style._replace(lower=True) for style in cased]
    return (*found, *own, *lower)


def _draw(
    random: Random, days: Sequence[date], by_language: Sequence[Sequence[DateStyle]], size: int, name: str
) -> tuple[DatePair, ...]:
    """Different dates: every language as often, and within it every style; lower case half as often."""
    if size > 5 * len(days):
        raise UsageError(f"{name} can have at most {5 * len(days):,} dates, got {size:,}")
    weights = [[1 if style.lower else 2 for style in group] for group in by_language]
    found: dict[str, DatePair] = {}
    while len(found) < size:
        place = random.randrange(len(by_language))
        (style,) = random.choices(by_language[place], weights[place])
        pair = style.write(random.choice(days))
        found[pair.source] = pair
    return tuple(found.values())


def _listed(place: str) -> Iterator[str]:
    """CLDR's own patterns for a place."""
    locale = Locale.parse(place)
    for length in ("full", "long", "medium", "short"):
        yield locale.date_formats[length].pattern
    for skeleton in SKELETONS:
        if skeleton in locale.datetime_skeletons:
            yield locale.datetime_skeletons[skeleton].pattern


def _tokens(pattern: str) -> Iterator[tuple[str, int]]:
    """A pattern's fields, as letter and width, and the text between them, with a width of 0."""
    for kind, value in tokenize_pattern(pattern):
        yield (str(value[0]), int(value[1])) if kind == "field" else (str(value), 0)


def _has_one_reading(pattern: str) -> bool:
    """Four digits of year; and a month by name, or the year first, or dots, which always mean day.month.year."""
    tokens = list(_tokens(pattern))
    fields = {text: width for text, width in tokens if width}
    if fields["y"] == 2:
        return False
    between = {text.strip() for text, width in tokens if not width} - {"", ","}
    return fields["M"] > 2 or next(iter(fields)) == "y" or between == {"."}


@cache
def _pieces(style: DateStyle) -> tuple[PatternPart, ...]:
    """The pattern as tables of text, in the letters and digits of the style, with plain spaces."""
    locale = Locale.parse(style.locale)
    own = str.maketrans("0123456789", NATIVE_DIGITS[style.language]) if style.native_digits else {}

    def finished(text: str) -> str:
        text = text.translate(SPACES).translate(own)
        return text.lower() if style.lower else text

    pieces: list[PatternPart] = []
    for text, width in _tokens(style.pattern):
        if width:
            pieces.append(_field(locale, text, width))
            continue
        if text.startswith("°"):
            pieces.append(("day", False, {day: _ordinal(style.language, day) for day in range(1, 32)}))
        pieces.append(("", False, {0: text.removeprefix("°")}))
    return tuple((part, linked, {at: finished(text) for at, text in texts.items()}) for part, linked, texts in pieces)


def _field(locale: Locale, letter: str, width: int) -> PatternPart:
    length = "abbreviated" if width <= 3 else "wide"
    if letter == "y":
        return "year", True, {year: str(year) for year in range(FIRST.year, LAST.year + 1)}
    if letter == "d":
        return "day", True, {day: f"{day:0{width}d}" for day in range(1, 32)}
    if letter == "M" and width <= 2:
        return "month", True, {month: f"{month:0{width}d}" for month in range(1, 13)}
    if letter == "M":
        return "month", True, dict(locale.months["format"][length])
    return "weekday", False, dict(locale.days["format"][length])


def _ordinal(language: str, day: int) -> str:
    """What follows a day's number; in most languages only the first of a month is an ordinal."""
    if language == "en":
        return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return {"fr": "er", "it": "º", "pt": "º"}[language] if day == 1 else ""
