"""The built-in corpus: dates as written in 17 languages, to be translated to ISO 8601 (2015-07-01).

Names and patterns come from the Unicode CLDR through Babel, so there is nothing to download; some patterns that CLDR
does not list (ordinals, "den 1. Juli") are added by hand. Dates are formatted here and not by Babel, because every pair
also has the character spans of year, month and day, which a model's attention can be compared with.

Ambiguous forms are excluded: two-digit years, and numbers alone in an order that differs between countries (1/7/2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from os import PathLike
from pathlib import Path
from random import Random
from typing import NamedTuple

from babel import Locale
from babel.dates import tokenize_pattern

from heedful.errors import UsageError, nearest

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
HELD_OUT = 0.1
"""Share of the days held out for validation, and again for the test."""

_LOCALES = "en en_GB, de de_AT, fr, es, it, pt, nl, sv, pl, tr, ru, el, ar, hi, ja, zh zh_Hant, ko"
LANGUAGES = {locales.split()[0]: tuple(locales.split()) for locales in _LOCALES.split(", ")}
"""The languages, and the locales of each whose patterns are used."""

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
"""Patterns that CLDR does not list. `d°` is the day as an ordinal."""

NATIVE_DIGITS = {"ar": "٠١٢٣٤٥٦٧٨٩", "hi": "०१२३४५६७८९"}
"""Native digits, used besides Western ones."""

SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200f": None, "\u200e": None})
Span = tuple[int, int]
PatternPart = tuple[str, bool, dict[int, str]]
"""A part of a pattern: the field it shows (or ""), whether its span is recorded, and its text for each value."""


class DateSpans(NamedTuple):
    """Character spans [start, end) of year, month and day."""

    year: Span
    month: Span
    day: Span


TARGET_SPANS = DateSpans(year=(0, 4), month=(5, 7), day=(8, 10))
"""The spans in every target."""


class DatePair(NamedTuple):
    """A date as written, in ISO 8601, and the spans of year, month and day in the former."""

    source: str
    target: str
    spans: DateSpans
    language: str


class Dates(NamedTuple):
    """The corpus; no day is in two of its splits."""

    train: tuple[DatePair, ...]
    valid: tuple[DatePair, ...]
    test: tuple[DatePair, ...]


class DateStyle(NamedTuple):
    """One way of writing a date: a CLDR pattern in a locale."""

    language: str
    locale: str
    pattern: str
    lower: bool = False
    native_digits: bool = False

    def write(self, day: date) -> DatePair:
        """Write a day in this style."""
        values = {"year": day.year, "month": day.month, "day": day.day, "weekday": day.weekday(), "": 0}
        source, spans = "", {}
        for field, has_span, texts in _pattern_parts(self):
            text = texts[values[field]]
            if has_span:  # the span of a month "7월" is its number alone
                spans[field] = (len(source), len(source) + len(text.rstrip("월")))
            source += text
        return DatePair(source, day.isoformat(), DateSpans(**spans), self.language)


def dates_corpus(
    seed: int = 0, *, train: int = 20_000, valid: int = 1_000, test: int = 1_000, languages: Sequence[str] = ()
) -> Dates:
    """Generate this many different dates for each split, in all languages or those named."""
    days = [date.fromordinal(number) for number in range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1)]
    Random(f"{seed} days").shuffle(days)
    held_out = int(HELD_OUT * len(days))
    days_of = {"test": days[:held_out], "valid": days[held_out : 2 * held_out], "train": days[2 * held_out :]}
    sizes = {"test": test, "valid": valid, "train": train}
    by_language = [styles(language) for language in languages or LANGUAGES]
    return Dates(
        **{name: _sample(Random(f"{seed} {name}"), days_of[name], by_language, sizes[name], name) for name in days_of}
    )


def write_dates(
    folder: str | PathLike[str], seed: int = 0, *, train: int = 20_000, valid: int = 1_000, test: int = 1_000
) -> Path:
    """Write the corpus as line files: train.source, train.target and so on. Existing files must be the same."""
    path = Path(folder)
    splits = dates_corpus(seed, train=train, valid=valid, test=test)._asdict()
    files = {
        path / f"{name}.{side}": "".join(f"{getattr(pair, side)}\n" for pair in pairs).encode()
        for name, pairs in splits.items()
        for side in ("source", "target")
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        missing = {file: text for file, text in files.items() if not file.exists() or file.read_bytes() != text}
        for file in missing:
            if file.exists():
                raise UsageError(f"{file} exists with other content: choose another folder, nothing is overwritten")
        for file, text in missing.items():
            file.write_bytes(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path


@cache
def styles(language: str) -> tuple[DateStyle, ...]:
    """All unambiguous ways of writing a date in a language."""
    if language not in LANGUAGES:
        raise UsageError(f"no dates in '{language}'; {nearest(language, LANGUAGES)}")
    locales = LANGUAGES[language]
    listed = [DateStyle(language, locale, pattern) for locale in locales for pattern in _cldr_patterns(locale)]
    extra = [DateStyle(language, locales[0], pattern) for pattern in EXTRA_PATTERNS.get(language, ())]
    basic = [style for style in dict.fromkeys([*listed, *extra]) if _is_unambiguous(style.pattern)]
    samples = [date(2015, month, 7 + month) for month in range(1, 13)]
    cased = [style for style in basic if any((text := style.write(day).source) != text.lower() for day in samples)]
    native = [style._replace(native_digits=True) for style in basic if language in NATIVE_DIGITS]
    return (*basic, *native, *(style._replace(lower=True) for style in cased))


def _sample(
    random: Random, days: Sequence[date], by_language: Sequence[Sequence[DateStyle]], size: int, name: str
) -> tuple[DatePair, ...]:
    """Different dates: languages uniformly, and styles within them; lower case half as often."""
    if size > 5 * len(days):
        raise UsageError(f"{name} can have at most {5 * len(days):,} dates, got {size:,}")
    weights = [[1 if style.lower else 2 for style in group] for group in by_language]
    pairs: dict[str, DatePair] = {}
    while len(pairs) < size:
        language = random.randrange(len(by_language))
        (style,) = random.choices(by_language[language], weights[language])
        pair = style.write(random.choice(days))
        pairs[pair.source] = pair
    return tuple(pairs.values())


def _cldr_patterns(name: str) -> Iterator[str]:
    locale = Locale.parse(name)
    for length in ("full", "long", "medium", "short"):
        yield locale.date_formats[length].pattern
    for skeleton in SKELETONS:
        if skeleton in locale.datetime_skeletons:
            yield locale.datetime_skeletons[skeleton].pattern


def _tokens(pattern: str) -> Iterator[tuple[str, int]]:
    """The fields of a pattern as letter and width, and the text between them with a width of 0."""
    for kind, value in tokenize_pattern(pattern):
        yield (str(value[0]), int(value[1])) if kind == "field" else (str(value), 0)


def _is_unambiguous(pattern: str) -> bool:
    """Four-digit year; and a month by name, or the year first, or dots, which always mean day.month.year."""
    tokens = list(_tokens(pattern))
    fields = {text: width for text, width in tokens if width}
    if fields["y"] == 2:
        return False
    between = {text.strip() for text, width in tokens if not width} - {"", ","}
    return fields["M"] > 2 or next(iter(fields)) == "y" or between == {"."}


@cache
def _pattern_parts(style: DateStyle) -> tuple[PatternPart, ...]:
    """The parts of the pattern with their texts, in the letters and digits of the style, with plain spaces."""
    locale = Locale.parse(style.locale)
    digits = str.maketrans("0123456789", NATIVE_DIGITS[style.language]) if style.native_digits else {}

    def in_style(text: str) -> str:
        text = text.translate(SPACES).translate(digits)
        return text.lower() if style.lower else text

    parts: list[PatternPart] = []
    for text, width in _tokens(style.pattern):
        if width:
            parts.append(_field(locale, text, width))
            continue
        if text.startswith("°"):
            parts.append(("day", False, {day: _ordinal(style.language, day) for day in range(1, 32)}))
        parts.append(("", False, {0: text.removeprefix("°")}))
    return tuple(
        (field, has_span, {value: in_style(text) for value, text in texts.items()}) for field, has_span, texts in parts
    )


def _field(locale: Locale, letter: str, width: int) -> PatternPart:
    length = "abbreviated" if width <= 3 else "wide"
    if letter == "y":
        return "year", True, {year: str(year) for year in range(FIRST_DAY.year, LAST_DAY.year + 1)}
    if letter == "d":
        return "day", True, {day: f"{day:0{width}d}" for day in range(1, 32)}
    if letter == "M" and width <= 2:
        return "month", True, {month: f"{month:0{width}d}" for month in range(1, 13)}
    if letter == "M":
        return "month", True, dict(locale.months["format"][length])
    return "weekday", False, dict(locale.days["format"][length])


def _ordinal(language: str, day: int) -> str:
    """The suffix of a day's number; in most languages only the first of a month is an ordinal."""
    if language == "en":
        return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return {"fr": "er", "it": "º", "pt": "º"}[language] if day == 1 else ""
