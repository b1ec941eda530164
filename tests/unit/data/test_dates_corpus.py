"""The dates corpus is correct, unambiguous, aligned and deterministic."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path
from time import process_time

import pytest

from heedful.data.corpus_readers import read_pairs
from heedful.data.dates_corpus import (
    LANGUAGES,
    TARGET_SPANS,
    DatePair,
    DateSpans,
    DateStyle,
    dates_corpus,
    styles,
    write_dates,
)
from heedful.errors import UsageError

ALL = [style for language in LANGUAGES for style in styles(language)]
NUMBERS = str.maketrans("٠١٢٣٤٥٦٧٨٩०१२३४५६७८९", "0123456789" * 2)


def weekdays_of_every_day() -> list[date]:
    """For each day of the year and each weekday a date: 28 years hold them all."""
    days: dict[tuple[int, int, int], date] = {}
    day = date(2000, 1, 1)
    while day.year < 2028:
        days.setdefault((day.month, day.day, day.weekday()), day)
        day += timedelta(days=1)
    assert len(days) == 366 * 7
    return list(days.values())


def test_no_source_is_ambiguous() -> None:
    """Year digits are one run of four and the only such run, so it is enough to look within a year."""
    meaning: dict[str, str] = {}
    every = weekdays_of_every_day()
    for style in ALL:
        has_weekday = "E" in re.sub("'[^']*'", "", style.pattern)
        days = every if has_weekday else [date(2000, 1, 1) + timedelta(days=number) for number in range(366)]
        for pair in map(style.write, days):
            start, end = pair.spans.year
            rest = f"{pair.source[:start]}YYYY{pair.source[end:]}"
            assert end - start == 4
            assert meaning.setdefault(rest, pair.target[5:]) == pair.target[5:], (pair, style)
    assert not any(re.search(r"\d{3}", rest) for rest in meaning)


def test_spans_mark_year_month_and_day() -> None:
    day = date(2015, 7, 3)
    for style in ALL:
        pair = style.write(day)
        year, month, number = (pair.source[start:end] for start, end in pair.spans)
        assert year.translate(NUMBERS) == "2015"
        assert int(number.translate(NUMBERS)) == 3
        assert month.strip() == month
        if month.isdigit():
            assert int(month.translate(NUMBERS)) == 7
        else:
            other = style.write(date(2015, 8, 3))
            start, end = other.spans.month
            assert month not in (other.source[start:end], "")
    assert [pair.target[start:end] for start, end in TARGET_SPANS] == ["2015", "07", "03"]


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("en", "Wednesday, July 1, 2015"), ("en", "July 1st, 2015"), ("en", "the 1st of july, 2015"),
        ("de", "Mittwoch, den 1. Juli 2015"), ("de", "01.07.2015"), ("fr", "le 1er juillet 2015"),
        ("es", "1 de julio de 2015"), ("pl", "1 lipca 2015 r."), ("ru", "среда, 1 июля 2015 г."),
        ("el", "Τετάρτη 1 Ιουλίου 2015"), ("ar", "١ يوليو ٢٠١٥"), ("hi", "1 जुलाई 2015"),
        ("ja", "2015年7月1日水曜日"), ("zh", "2015年7月1日星期三"), ("ko", "2015년 7월 1일 수요일"),
        ("tr", "1 Temmuz 2015"),
    ],
)  # fmt: skip
def test_common_formats_occur(language: str, source: str) -> None:
    assert source in {style.write(date(2015, 7, 1)).source for style in styles(language)}


def test_english_ordinals() -> None:
    style = DateStyle("en", "en", "d° MMMM y")
    written = [style.write(date(2001, 5, day)).source.split()[0] for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 31)]
    assert " ".join(written) == "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd 31st"


def test_ambiguous_formats_are_excluded() -> None:
    written = {style.write(date(2015, 7, 1)).source for style in ALL}
    assert not {"1/7/15", "7/1/15", "01/07/2015", "7/1/2015", "01-07-2015", "01.07.15", "1/7/2015"} & written
    assert len(LANGUAGES) >= 12


def test_splits_have_their_sizes_and_share_no_day() -> None:
    corpus = dates_corpus(3, train=3000, valid=300, test=300)
    assert [len(part) for part in corpus] == [3000, 300, 300]
    days = [{pair.target for pair in part} for part in corpus]
    assert not days[0] & days[1]
    assert not days[0] & days[2]
    assert not days[1] & days[2]
    assert all(len({pair.source for pair in part}) == len(part) for part in corpus)
    assert {pair.language for pair in corpus.train} == set(LANGUAGES)


def test_corpus_depends_on_the_seed_alone() -> None:
    one = dates_corpus(1, train=50, valid=5, test=5)
    assert one == dates_corpus(1, train=50, valid=5, test=5)
    assert one.train != dates_corpus(2, train=50, valid=5, test=5).train
    assert one.train == dates_corpus(1, train=500, valid=0, test=0).train[:50]
    first = DatePair("1904년 7월 3일", "1904-07-03", DateSpans(year=(0, 4), month=(6, 7), day=(9, 10)), "ko")
    assert dates_corpus(0, train=1, valid=0, test=0).train == (first,)  # in every version, unless CLDR changes


def test_twenty_thousand_take_less_than_three_seconds() -> None:
    start = process_time()
    dates_corpus(train=20_000)
    assert process_time() - start < 3


def test_written_files_read_as_pairs_and_are_never_overwritten(tmp_path: Path) -> None:
    folder = write_dates(tmp_path / "dates", train=200, valid=20, test=20)
    expected = dates_corpus(train=200, valid=20, test=20)
    for part, pairs in expected._asdict().items():
        read = list(read_pairs([folder / f"{part}.source", folder / f"{part}.target"]))
        assert [pair[:2] for pair in read] == [pair[:2] for pair in pairs]
    write_dates(folder, train=200, valid=20, test=20)
    with pytest.raises(UsageError, match="exists with other content"):
        write_dates(folder, seed=1, train=200, valid=20, test=20)


def test_unknown_language_or_too_many_dates_raise_usage_error() -> None:
    with pytest.raises(UsageError, match="no dates in 'dee'; did you mean 'de'"):
        dates_corpus(train=1, languages=["dee"])
    with pytest.raises(UsageError, match="test can have at most"):
        dates_corpus(train=1, test=10**6)
